// The angles of rotary position embeddings.
#ifndef COMMON_ENGINE_ATTENTION_ROTARY_H_
#define COMMON_ENGINE_ATTENTION_ROTARY_H_

#include <span>
#include <vector>

#include "common/model/model_config.h"

namespace baton {

class Rotary {
 public:
  // `sliding`: of the layers that have a window, where they have a rope of their own.
  explicit Rotary(const ModelConfig& config, bool sliding = false);

  // Writes cosines and sines of `position`, rope_dim / 2 each, times the magnitude of a scaling
  // that has one. Angles are rounded to float32 where Hugging Face rounds them: at positions in the
  // thousands that shows in the logits.
  void Angles(int position, float* cos, float* sin) const;

  int half_dim() const { return static_cast<int>(frequencies_.size()); }
  // Radians per position, and the magnitude, for devices that compute angles themselves.
  std::span<const float> frequencies() const { return frequencies_; }
  float magnitude() const { return magnitude_; }

 private:
  std::vector<float> frequencies_;
  float magnitude_ = 1;
};

}  // namespace baton

#endif  // COMMON_ENGINE_ATTENTION_ROTARY_H_
