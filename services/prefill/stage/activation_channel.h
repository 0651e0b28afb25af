// The activations of one stage: input buffers that the previous stage's data is placed into, output
// buffers that the next stage's is sent from, and the credits between. Buffers belong to one epoch;
// whatever of an older one is still under way keeps its own memory alive, so nothing late can reach
// the new one's.
#ifndef SERVICES_PREFILL_STAGE_ACTIVATION_CHANNEL_H_
#define SERVICES_PREFILL_STAGE_ACTIVATION_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/device/memory.h"
#include "common/engine/executor.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "services/prefill/core/neighbours.h"
#include "services/prefill/core/stage.h"
#include "services/prefill/stage/activation_wire.h"
#include "services/prefill/stage/input_buffers.h"

namespace baton::prefill {

// What a stage agrees on with its neighbours for one epoch.
struct ActivationEpoch {
  uint64_t epoch = 0;
  int max_plan_tokens = 0;
  int credits = 0;
  int output_buffers = 0;
  std::optional<Neighbour> previous;  // None on stage 0.
  std::optional<Neighbour> next;      // None on the last stage.
};

// Memory of a plan's input and output, held as long as the plan is being computed.
struct ActivationBuffers {
  std::shared_ptr<const void> owner;
  TensorView in;                      // [tokens, columns]; none on stage 0
  TensorView out;                     // [tokens, columns]; none on the last stage
  std::shared_ptr<InputCheck> check;  // Checks `in`.
};

// Registered for MessageKind::kActivations. OnHeader and OnPlaced run on the data thread, the rest
// on the loop's.
class ActivationChannel final : public MessageHandler {
 public:
  struct Options {
    Executor* executor = nullptr;  // Says what activations are, and where they lie.
    DataPlane* data_plane = nullptr;
    Metrics* metrics = nullptr;
    std::function<void(StageEvent)> on_event;  // Any thread.
    std::function<void(uint64_t epoch, const absl::Status&)>
        on_error;  // Any thread: break this epoch.
  };
  explicit ActivationChannel(Options options);
  ~ActivationChannel() override;

  // RESOURCE_EXHAUSTED if there is no memory for the epoch's buffers: then it has not begun.
  absl::Status Begin(const ActivationEpoch& epoch);
  void End();

  // The buffers of plan `number`. INTERNAL if the input has another size than the plan says.
  absl::StatusOr<ActivationBuffers> Buffers(uint64_t number, int tokens);

  void Send(const SendActivations& action);
  void Return(const ReturnCredit& action);

  // Since when a plan's activations have been arriving that are not whole yet; kNeverUs: none are.
  int64_t receiving_since_us() const;

  std::optional<Placement> OnHeader(std::span<const std::byte> header,
                                    size_t payload_bytes) override;
  void OnPlaced(uint64_t receipt, const absl::Status& status) override;

 private:
  struct Memory;
  struct Passing;
  struct Arriving {
    std::shared_ptr<Memory> memory;
    ActivationHeader header;
  };
  TensorView View(const MemorySpan& buffer, int64_t tokens) const;
  absl::StatusOr<std::vector<MemoryBuffer>> Allocate(int count, int64_t tokens) const;

  // Sending. On the data thread pieces, while not too many are under way; then, on the checks'
  // thread, the checksum of all of them.
  void Advance(const std::shared_ptr<Passing>& passing);
  void SendPiece(const std::shared_ptr<Passing>& passing);
  void SendSum(const std::shared_ptr<Passing>& passing);
  void Sent(const Passing& passing);

  // Receiving.
  std::optional<Placement> OnPiece(const ActivationHeader& header, size_t payload_bytes);
  void OnSum(const ActivationSum& sum);
  void Check(const Arriving& arrived, InputBuffers::Whole whole);

  const Options options_;
  const int columns_;
  const ElementType type_;
  mutable Mutex mutex_;
  std::shared_ptr<Memory> memory_ ABSL_GUARDED_BY(mutex_);  // Null between epochs.
  std::map<uint64_t, Arriving> arriving_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_receipt_ ABSL_GUARDED_BY(mutex_) = 1;
  EventLoop checking_{"baton-checks"};
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_ACTIVATION_CHANNEL_H_
