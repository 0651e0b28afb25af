#include "common/engine/timed/timed_steps.h"

#include <algorithm>

namespace baton {

TimedSteps::TimedSteps(const TimedProfile& profile, LayerRange layers)
    : share_(static_cast<double>(layers.size()) / profile.layers),
      prefill_(profile.OfStage(layers.size())),
      decode_(profile.decode),
      noise_relative_(profile.noise_relative),
      random_(profile.noise_seed * 1000 + static_cast<uint64_t>(layers.begin)) {}

double TimedSteps::Micros(const TimedStep& step) const {
  if (!step.decodes) return prefill_.Micros(step.work);
  return share_ * (decode_.overhead_us + decode_.sequence_us * step.sequences +
                   decode_.context_us * static_cast<double>(step.work.prefix_tokens));
}

int64_t TimedSteps::NextMicros(const TimedStep& step) {
  return static_cast<int64_t>(Micros(step) * Noise());
}

// The sum of twelve uniform numbers is near enough to a normal one, and the same everywhere.
double TimedSteps::Noise() {
  if (noise_relative_ == 0) return 1;
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random_.Uniform();
  return std::max(0.0, 1 + noise_relative_ * sum);
}

}  // namespace baton
