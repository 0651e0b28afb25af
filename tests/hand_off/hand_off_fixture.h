// A hand-off in one process: the senders of two prefill stages of m ranks, the receivers of a
// decode service of n ranks, and data planes between them. No model computes: pages are filled with
// bytes that say where they belong, so that one in a wrong place shows.
#ifndef TESTS_HAND_OFF_HAND_OFF_FIXTURE_H_
#define TESTS_HAND_OFF_HAND_OFF_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/kv/lease_table.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "common/types/kv_layout.h"
#include "services/decode/kv_receiver.h"
#include "services/prefill/stage/kv_sender.h"

namespace baton::hand_off {

// What is handed over, between how many.
struct Shape {
  int prefill_ranks = 1;  // Per stage, of two stages.
  int decode_ranks = 1;
  int kv_heads = 2;
  ElementType type = ElementType::kFloat32;
  int head_dim = 4;
  int page_size = 8;
  int page_count = 16;      // Per process.
  int planes = 2;           // 1: latent rows.
  bool on_devices = false;  // Executors whose pages are reached by copies alone.
};

inline constexpr int kLayers = 5;  // Two of the first stage, three of the second.

// Data planes that are all connected, for one case after the other: opening one takes a while.
class Planes {
 public:
  explicit Planes(int count);
  ~Planes();
  DataPlane& at(size_t index) { return *planes_[index]; }
  // From `from` to `to`.
  PeerId Peer(size_t from, size_t to) const { return peers_.at({from, to}); }

 private:
  std::vector<std::unique_ptr<DataPlane>> planes_;
  std::map<std::pair<size_t, size_t>, PeerId> peers_;
};

// The prompt's pages as prefill and as decode have them.
struct Prompt {
  int tokens = 0;
  std::vector<int> prefill_pages;
  std::vector<int> decode_pages;
};

class HandOff {
 public:
  HandOff(const Shape& shape, Planes& planes);
  ~HandOff();

  // Grants slot and generation `number` at every rank of decode, and has every writer send its
  // pages in two chunks and its commit. `number` grows.
  Ticket Begin(uint64_t number, const Prompt& prompt);

  // What became of it, bounded: empty if every rank of decode has committed, the first token is
  // with those that hear it, and every writer's sends have ended well.
  std::string AwaitEnd(const Ticket& ticket);
  // Likewise bounded: the first error that a writer's send has ended with.
  absl::Status AwaitFailure();

  // Compares every byte of the prompt's pages on every rank of decode with what one process that
  // has all layers and heads holds, and all others with what they held before. Empty: equal.
  std::string Compare(const std::vector<Prompt>& prompts) const;

  // From now on no sender finds this rank of decode.
  void Disconnect(int decode_rank);
  size_t writers() const { return senders_.size(); }

 private:
  struct Rank;
  struct Sender;
  struct Receiver;

  InstanceRef DecodeRef(int rank) const;
  std::unique_ptr<Rank> MakeRank(LayerRange layers, TensorRank rank, std::byte fill) const;
  void MakeSender(LayerRange layers, TensorRank rank, size_t plane);
  void MakeReceiver(TensorRank rank, size_t plane);
  void Fill(const Rank& rank, const std::vector<int>& pages) const;
  bool Await(const std::function<bool()>& condition);

  const Shape shape_;
  Planes& planes_;
  Metrics metrics_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  std::vector<KvWriter> writers_;
  uint64_t next_send_id_ = 1;

  mutable Mutex mutex_;
  std::set<int> disconnected_ ABSL_GUARDED_BY(mutex_);
  std::vector<prefill::KvSent> sent_ ABSL_GUARDED_BY(mutex_);
  size_t sends_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::hand_off

#endif  // TESTS_HAND_OFF_HAND_OFF_FIXTURE_H_
