// What lease_table.h promises, held against every message that a lease table is asked about and
// every event it raises. An account from outside that shares no code with the table.
#ifndef TESTS_SIM_LEASE_WITNESS_H_
#define TESTS_SIM_LEASE_WITNESS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/lease_table.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class LeaseWitness {
 public:
  // `rank`: of its decode service.
  LeaseWitness(World& world, const Topology& topology, InstanceRef self, TensorRank rank,
               LayerRange layers);

  void Granted(const KvGrant& grant);
  void Revoked(uint32_t slot, uint64_t generation);
  // `again`: it has come before, or is late; then it may be of no use.
  // `refusal` means something if the answer is an error.
  void Data(const KvDataHeader& header, bool again, const absl::StatusOr<KvPlacement>& answer,
            KvRefusal refusal);
  // What acceptable KV may be part of; nullopt: the KV is to be refused.
  struct Extent {
    int pages = 0;  // In the prompt.
    int parts = 0;  // Per page of this writer's.
    // A page that has not come, before one that has, where a run may be about both.
    std::optional<int> missing_page;
  };
  std::optional<Extent> ExtentOf(const KvDataHeader& header);
  // Whether the commit is of a writer of an open grant; and whether it would be its first.
  bool Awaits(const KvCommit& commit);
  bool AwaitsFirst(const KvCommit& commit);
  // One that no grant has ever been of, if there is one.
  std::optional<uint32_t> UnusedSlot() const;
  void Placed(uint64_t receipt, bool ok, uint64_t checksum, bool damaged);
  // `refusal` as above.
  void Commit(const KvCommit& commit, bool again, const absl::Status& answer, KvRefusal refusal);
  // The next commit is forged, whatever it says; its writer's own may contradict it.
  void ForgeNext() { forged_ = true; }
  void Heartbeat(const InstanceRef& writer);
  void Ticked();
  // When the table says that a grant may end by time next.
  void Sleeps(int64_t until_us);
  std::set<InstanceRef> OpenWriters() const;  // The writers of open grants.
  // What it tells writers of that: all of it and nothing else.
  void Told(const std::vector<KvReceipt>& receipts);
  // What the table has raised at the last of these, which is all of it and nothing else.
  void Raised(const std::vector<LeaseEvent>& events);

 private:
  enum class Kind { kCommitted, kFailed, kDrained };
  struct Writer {
    KvWriter who;
    int64_t heard_us = 0;
    int parts = 0;                            // Per page.
    bool copied = false;                      // Some KV came by a copy.
    std::set<std::pair<int, int>> announced;  // (page, part): arriving or there.
    int arrived = 0;                          // Pages' parts.
    uint64_t sum = 0;
    std::optional<KvCommit> commit;
    bool forged = false;  // The commit is not its own.
  };
  struct Grant {
    KvGrant grant;
    std::vector<Writer> writers;
    int64_t granted_us = 0;
    bool open = true;  // Neither committed nor failed nor revoked.
    bool revoked = false;
    int under_way = 0;
  };
  struct Cause {  // A failure's cause, and the peer at fault.
    absl::StatusCode code = absl::StatusCode::kOk;
    const char* leg = "";
    std::string instance;
  };
  struct Run {
    uint64_t generation = 0;
    size_t writer = 0;
    int parts = 0;
    uint64_t checksum = 0;
  };

  template <typename Message>
  Grant* Locate(const Message& message, size_t& writer);
  template <typename Message>
  Grant* Find(const Message& message, size_t& writer);
  // Why a message is refused that Find finds no grant for; and data of a writer's, if it is.
  template <typename Message>
  KvRefusal WhyNobodys(const Message& message) const;
  std::optional<KvRefusal> Misfit(const Grant& grant, const Writer& writer,
                                  const KvDataHeader& header) const;
  size_t BytesOf(const Writer& writer, const KvDataHeader& header) const;
  bool Complete(const Grant& grant, const Writer& writer) const;
  int Missing(const Grant& grant, const Writer& writer) const;
  int64_t DeadlineUs(const Grant& grant) const;
  // Bytes of a page in one layer that the writer has for this rank.
  size_t LayerBytes(const KvWriter& writer) const {
    const int heads = topology_.CommonHeads(writer.tensor_rank.rank, rank_.rank).size();
    return topology_.Layout().WithHeads(heads).BytesPerLayer();
  }
  // After a commit or an arrival of the writer's.
  void Settle(Grant& grant, const Writer& writer);
  KvReceipt ReceiptOf(const KvCommit& commit, KvReceiptKind kind, int missing) const;
  void Fail(Grant& grant, Cause cause);
  void FailFor(Grant& grant, const Writer& writer, absl::StatusCode code) {
    Fail(grant, {code, "prefill", writer.who.instance.id});
  }
  void Heard(uint64_t incarnation);
  void CheckEvent(const LeaseEvent& event);
  void CheckFailure(const KvFailed& failed);
  void Complain(const std::string& what);

  World& world_;
  const Topology& topology_;
  const InstanceRef self_;
  const TensorRank rank_;
  const LayerRange layers_;
  std::map<uint64_t, Grant> grants_;  // By generation, until it is drained.
  std::map<uint64_t, Run> runs_;      // By receipt.
  std::set<uint32_t> slots_;          // That have ever been granted.
  std::multiset<std::pair<Kind, uint64_t>> due_;
  std::map<uint64_t, Cause> causes_;  // By generation, of the failures that are due.
  std::vector<KvReceipt> receipts_due_;
  bool forged_ = false;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_LEASE_WITNESS_H_
