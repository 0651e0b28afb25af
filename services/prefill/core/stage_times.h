// How a stage spends its time. The parts always add up to the time from the first to the last event
// that was accounted for.
#ifndef SERVICES_PREFILL_CORE_STAGE_TIMES_H_
#define SERVICES_PREFILL_CORE_STAGE_TIMES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace baton::prefill {

// What a stage is about; all but kBusy are reasons for being idle.
enum class StageDoing {
  kBusy,       // A plan is with the executor.
  kNoRequest,  // It holds nothing of any request.
  kBubble,     // It has no plan.
  kInput,      // It has a plan, and the stage before is not done with it.
  kTransfer,   // The plan's activations are arriving, or those in its output buffer are being sent.
  kCredit,     // The next stage has no buffer for what is in its output buffers.
};
inline constexpr int kStageDoings = 6;

// As in metrics; all but "busy" are values of their label `reason`.
constexpr const char* StageDoingName(StageDoing doing) {
  constexpr const char* kNames[] = {"busy", "no_request", "bubble", "input", "transfer", "credit"};
  static_assert(std::size(kNames) == kStageDoings);
  return kNames[static_cast<int>(doing)];
}

struct StageTimes {
  int64_t us[kStageDoings] = {};

  int64_t Of(StageDoing doing) const { return us[static_cast<int>(doing)]; }
  int64_t Together() const {
    int64_t sum = 0;
    for (const int64_t part : us) sum += part;
    return sum;
  }
  // It was about `doing` from `begin_us` to `end_us`. Of a wait for input the part since
  // `receiving_since_us`, when activations began to arrive, is the transfer's.
  void Add(StageDoing doing, int64_t begin_us, int64_t end_us, int64_t receiving_since_us) {
    int64_t until_us = end_us;
    if (doing == StageDoing::kInput) {
      until_us = std::min(std::max(begin_us, receiving_since_us), end_us);
      us[static_cast<int>(StageDoing::kTransfer)] += end_us - until_us;
    }
    us[static_cast<int>(doing)] += until_us - begin_us;
  }
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_STAGE_TIMES_H_
