#include "common/engine/attention/rotary.h"

#include <cmath>
#include <numbers>

namespace baton {
namespace {

float ScaleLlama3(float frequency, const Llama3RopeScaling& scaling) {
  const double original = scaling.original_max_position_embeddings;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) {
    return static_cast<float>(frequency / scaling.factor);
  }
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
}

}  // namespace

Rotary::Rotary(const ModelConfig& config) {
  for (int i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    auto frequency = static_cast<float>(1 / std::pow(config.rope_theta, double{exponent}));
    if (config.rope_scaling) frequency = ScaleLlama3(frequency, *config.rope_scaling);
    frequencies_.push_back(frequency);
  }
}

void Rotary::Angles(int position, float* cos, float* sin) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies_[i];
    cos[i] = static_cast<float>(std::cos(double{angle}));
    sin[i] = static_cast<float>(std::sin(double{angle}));
  }
}

}  // namespace baton
