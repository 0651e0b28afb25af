#include "common/engine/attention/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace baton {
namespace {

float ScaleLlama3(float frequency, const RopeScaling& scaling) {
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

// Which share of each frequency YaRN divides by the factor: none of the first dimensions, which
// turn often within the original context, all of the last ones, and a ramp between.
class YarnRamp {
 public:
  YarnRamp(const ModelConfig& config, const RopeScaling& scaling) {
    const auto dimension = [&](double turns) {
      const double ratio =
          scaling.original_max_position_embeddings / (turns * 2 * std::numbers::pi);
      return config.rope_dim() * std::log(ratio) / (2 * std::log(config.rope_theta));
    };
    low_ = dimension(scaling.beta_fast);
    high_ = dimension(scaling.beta_slow);
    if (scaling.truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, config.rope_dim() - 1.0);
    if (low_ == high_) high_ += 0.001;  // Hugging Face's step.
  }

  float Share(int index) const {
    return static_cast<float>(std::clamp((index - low_) / (high_ - low_), 0.0, 1.0));
  }

 private:
  double low_ = 0;  // Indices into the frequencies.
  double high_ = 0;
};

float ScaleYarn(float frequency, float share, double factor) {
  const auto divided = static_cast<float>(frequency / factor);
  return divided * share + frequency * (1 - share);
}

}  // namespace

Rotary::Rotary(const ModelConfig& config, bool sliding) {
  const RopeScaling plain;  // Linear by 1.
  const bool own = sliding && config.sliding_rope_theta > 0;
  const double theta = own ? config.sliding_rope_theta : config.rope_theta;
  const RopeScaling& scaling = config.rope_scaling && !own ? *config.rope_scaling : plain;
  magnitude_ = static_cast<float>(scaling.magnitude);
  std::optional<YarnRamp> ramp;
  if (scaling.kind == RopeKind::kYarn) ramp.emplace(config, scaling);
  for (int index = 0; index < config.rope_dim() / 2; ++index) {
    const float exponent = static_cast<float>(2 * index) / static_cast<float>(config.rope_dim());
    const double turns = 1 / std::pow(theta, double{exponent});
    auto frequency = static_cast<float>(turns);
    switch (scaling.kind) {
      case RopeKind::kLinear:
        frequency = static_cast<float>(frequency / scaling.factor);
        break;
      case RopeKind::kLlama3:
        frequency = ScaleLlama3(frequency, scaling);
        break;
      case RopeKind::kYarn:
        frequency = ScaleYarn(frequency, ramp->Share(index), scaling.factor);
        break;
      case RopeKind::kLongRope:
        frequency = static_cast<float>(turns / scaling.divisors[static_cast<size_t>(index)]);
        break;
    }
    frequencies_.push_back(frequency);
  }
}

void Rotary::Angles(int position, float* cos, float* sin) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies_[i];
    cos[i] = static_cast<float>(std::cos(double{angle})) * magnitude_;
    sin[i] = static_cast<float>(std::sin(double{angle})) * magnitude_;
  }
}

}  // namespace baton
