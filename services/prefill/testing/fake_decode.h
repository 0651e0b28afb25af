// A decode service's data side for tests, or that of one of its ranks: grants pages, takes what
// prefill stages send, gives receipts, and tells whether every byte and the first token are right.
#ifndef SERVICES_PREFILL_TESTING_FAKE_DECODE_H_
#define SERVICES_PREFILL_TESTING_FAKE_DECODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/kv/wire.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "common/types/ticket.h"
#include "services/prefill/testing/fake_model.h"

namespace baton::prefill {

class FakeDecode final : public MessageHandler {
 public:
  explicit FakeDecode(const InstanceRef& self, TensorRank rank = {});
  ~FakeDecode() override;

  const InstanceRef& self() const { return self_; }
  DataPlane& data_plane() { return *data_plane_; }

  // Where a writer's receipts go, and which rank of its stage it is.
  void Connect(const InstanceRef& stage, const std::string& address, TensorRank writer);

  Ticket Grant(int prompt_tokens);
  // The same under a ticket that rank 0 has granted.
  void GrantToo(const Ticket& ticket);

  // Waits (bounded) for the commits of `writers` stages or ranks, `tokens` of which bring the first
  // token, and compares with what FakeModel makes of `prompt`. Empty: all is right; else what is
  // wrong.
  std::string Check(const Ticket& ticket, const std::vector<int32_t>& prompt, int writers,
                    int tokens = 1);

  // Waits (bounded) for the commit that carries the first token; -1 if none came.
  int32_t FirstToken(const Ticket& ticket);

  // Waits (bounded) for a heartbeat of every one of `writers`.
  bool HeardFrom(const std::set<uint64_t>& writer_incarnations);

  std::optional<Placement> OnHeader(std::span<const std::byte> header,
                                    size_t payload_bytes) override;
  void OnPlaced(uint64_t receipt, const absl::Status& status) override;

 private:
  struct Transfer {
    Ticket ticket;
    std::vector<float> pages;  // [page][layer][K/V][head][token][dim]
    // By the writer's incarnation.
    std::map<std::pair<uint64_t, int>, int> runs;  // And the page: times it came.
    std::map<uint64_t, uint64_t> checksum_sums;    // Over the messages announced.
    std::map<uint64_t, KvCommit> commits;
    std::set<uint64_t> untold;  // Those whose commit has no receipt yet.
    int placing = 0;
    std::string error;
  };

  std::optional<Placement> OnData(const KvDataHeader& header, size_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendReceipts(Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `condition` is evaluated locked.
  bool WaitFor(const std::function<bool()>& condition);
  static bool Complete(const Transfer& transfer, int writers);
  std::string Compare(const Transfer& transfer, const std::vector<int32_t>& prompt, int writers,
                      int tokens) const;
  int runs_per_layer() const { return 2 * own_.size(); }
  size_t FloatsPerLayer() const;

  const InstanceRef self_;
  const TensorRank rank_;
  const IndexRange own_;  // Heads.
  Mutex mutex_;
  std::map<uint64_t, Transfer> transfers_ ABSL_GUARDED_BY(mutex_);  // By generation.
  std::map<uint64_t, uint64_t> placing_ ABSL_GUARDED_BY(mutex_);    // Receipt -> generation.
  std::set<uint64_t> heard_ ABSL_GUARDED_BY(mutex_);
  std::map<InstanceRef, PeerId> peers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, IndexRange> heads_ ABSL_GUARDED_BY(mutex_);  // By the writer's incarnation.
  uint64_t next_generation_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_receipt_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unique_ptr<DataPlane> data_plane_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_TESTING_FAKE_DECODE_H_
