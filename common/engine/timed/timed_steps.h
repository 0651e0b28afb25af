// What the steps of a process that holds some of a profile's layers take. The timed stage model
// waits for so long; the simulator (services/simulator) adds it to virtual time.
#ifndef COMMON_ENGINE_TIMED_TIMED_STEPS_H_
#define COMMON_ENGINE_TIMED_TIMED_STEPS_H_

#include <cstdint>

#include "common/base/random.h"
#include "common/chunking/stage_cost.h"
#include "common/engine/timed/timed_profile.h"
#include "common/types/kv_layout.h"

namespace baton {

// The sequences of one step.
struct TimedStep {
  PlanWork work;
  int sequences = 0;
  bool decodes = true;  // Each of them has one token.

  void Add(int prefix_length, int tokens) {
    work.Add(prefix_length, tokens);
    ++sequences;
    decodes = decodes && tokens == 1;
  }
};

class TimedSteps {
 public:
  TimedSteps(const TimedProfile& profile, LayerRange layers);

  // Microseconds, without noise.
  double Micros(const TimedStep& step) const;
  // With the noise of the next step, which this is.
  int64_t NextMicros(const TimedStep& step);

 private:
  double Noise();

  double share_ = 1;  // Of all layers.
  StageCost prefill_;
  TimedDecodeCost decode_;
  double noise_relative_ = 0;
  Random random_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_TIMED_STEPS_H_
