// The input buffers of one epoch: which plan has which, and what of it has come. Pieces and the
// checksum come in any order and count once; whatever breaks the credits or the shape is refused.
// It copies and hashes nothing, and has no thread: its owner holds a lock around it.
#ifndef SERVICES_PREFILL_STAGE_INPUT_BUFFERS_H_
#define SERVICES_PREFILL_STAGE_INPUT_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/sync.h"
#include "common/device/memory.h"
#include "common/types/kv_layout.h"
#include "services/prefill/stage/activation_wire.h"

namespace baton::prefill {

// Whether a plan's input is what the previous stage sent: both stages take the checksum of all of
// it once it has arrived, while the plan is computed already, since checksums would be a third of a
// hop's time. Nothing that was computed leaves the stage before they have been found equal
// (PlanComputer), so a damaged input ends its epoch, as always, and its results are not sent.
inline absl::Status DamagedInput(uint64_t plan) {
  return absl::DataLossError(absl::StrCat("activations of plan ", plan, " are damaged"));
}

// Checks one plan's input; any thread. The answer does not change once it is there.
class InputCheck {
 public:
  explicit InputCheck(uint64_t plan) : plan_(plan) {}

  // The checksums of what the previous stage has sent, and of what has arrived (called once).
  // DATA_LOSS if the other is known and differs, FAILED_PRECONDITION for a second Sent.
  absl::Status Sent(uint64_t checksum) {
    MutexLock lock(&mutex_);
    if (sent_.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("activations of plan ", plan_, ": their checksum came twice"));
    }
    sent_ = checksum;
    return Compare();
  }
  absl::Status Arrived(uint64_t checksum) {
    MutexLock lock(&mutex_);
    arrived_ = checksum;
    return Compare();
  }

  // The answer is known otherwise, or one of the two will not come any more.
  void Settle(const absl::Status& answer) {
    MutexLock lock(&mutex_);
    if (!answer_.has_value()) answer_ = answer;
  }

  // Blocks until there is an answer: DATA_LOSS if the two differ.
  absl::Status Await() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answer_.has_value(); });
    return *answer_;
  }

 private:
  absl::Status Compare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!sent_.has_value() || !arrived_.has_value()) return absl::OkStatus();
    const absl::Status equal = *sent_ == *arrived_ ? absl::OkStatus() : DamagedInput(plan_);
    if (!answer_.has_value()) answer_ = equal;
    return equal;
  }

  const uint64_t plan_;
  Mutex mutex_;
  std::optional<uint64_t> sent_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> answer_ ABSL_GUARDED_BY(mutex_);
};

class InputBuffers {
 public:
  struct Shape {
    int max_tokens = 0;
    int columns = 0;
    ElementType type = ElementType::kFloat32;
  };
  struct Whole {           // All of a plan's input is there.
    int64_t since_us = 0;  // When the first of it came.
    MemorySpan data;       // [tokens, columns]
    std::shared_ptr<InputCheck> check;
  };

  // One buffer for each plan that may be arriving or computed; none on stage 0.
  InputBuffers(const Shape& shape, std::vector<MemoryBuffer> buffers);

  bool empty() const { return inputs_.empty(); }

  // Where a piece belongs. FAILED_PRECONDITION, which ends the epoch: it belongs nowhere.
  absl::StatusOr<MemorySpan> Accept(const ActivationHeader& header, size_t payload_bytes,
                                    int64_t now_us);
  // The check of the checksum's plan; the caller passes it the checksum. FAILED_PRECONDITION as
  // above.
  absl::StatusOr<std::shared_ptr<InputCheck>> Accept(const ActivationSum& sum, int64_t now_us);
  // A piece that was accepted is there.
  std::optional<Whole> Placed(const ActivationHeader& header);

  // The input of plan `number`, of which all has been placed. INTERNAL if it is another's or has
  // another size.
  absl::StatusOr<Whole> Of(uint64_t number, int tokens) const;
  void Free(uint64_t number);

  // Since when a plan's input has been arriving that is not whole yet; kNeverUs: none is.
  int64_t receiving_since_us() const;
  // Nothing more will come: pending checks end with `why`.
  void End(const absl::Status& why);

 private:
  struct Input {
    MemoryBuffer data;
    uint64_t number = 0;  // Plan in it; 0: free.
    uint32_t tokens = 0;
    int64_t since_us = 0;
    std::vector<bool> came;  // By piece: it is arriving or has arrived. Empty: none has yet.
    size_t placed = 0;       // Pieces.
    std::shared_ptr<InputCheck> check;
  };
  size_t Slot(uint64_t number) const { return number % inputs_.size(); }
  absl::StatusOr<Input*> Claim(uint64_t number, int64_t now_us);
  static Whole WholeOf(const Input& input, size_t bytes);

  const Shape shape_;
  std::vector<Input> inputs_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_INPUT_BUFFERS_H_
