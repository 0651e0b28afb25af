// What a timed executor plays: a model's sizes and what its steps cost. A file, whose format
// README.md describes; everything in it is checked, since people write it.
#ifndef COMMON_ENGINE_TIMED_TIMED_PROFILE_H_
#define COMMON_ENGINE_TIMED_TIMED_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/chunking/stage_cost.h"
#include "common/model/model_config.h"
#include "common/types/element_type.h"
#include "common/types/kv_layout.h"
#include "common/types/model_fingerprint.h"

namespace baton {

// A step in which every sequence has one token; microseconds of the whole model:
//   overhead + sequence * sequences + context * tokens of all of them
struct TimedDecodeCost {
  double overhead_us = 0;
  double sequence_us = 0;
  double context_us = 0;
};

struct TimedProfile {
  std::string name;
  // In place of config.json's. Keys and values have one type, weights and activations another.
  int layers = 0;
  int hidden_size = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int context_tokens = 0;
  ElementType dtype = ElementType::kBFloat16;
  ElementType kv_dtype = ElementType::kBFloat16;
  // A chunk costs a stage `stage_overhead_us`, and of `prefill`, which is all layers', its share.
  double stage_overhead_us = 0;
  StageCost prefill;
  TimedDecodeCost decode;
  double noise_relative = 0;  // Standard deviation of a step's time, as a part of it.
  uint64_t noise_seed = 1;
  uint64_t text_hash = 0;  // Of the file.

  StageCost OfStage(int stage_layers) const;
  // The model that the rest of Baton is to see: `config` with this profile's sizes.
  ModelConfig Apply(ModelConfig config) const;
  // As FingerprintStage: equal where the files are.
  ModelFingerprint Fingerprint(const ModelConfig& config, LayerRange stage_layers) const;
};

// InvalidArgument names `file`, the line and the field.
absl::StatusOr<TimedProfile> ParseTimedProfile(std::string_view text, const std::string& file);
// NotFound for a file that is not there.
absl::StatusOr<TimedProfile> LoadTimedProfile(const std::string& path);

// LoadModelConfig(model_path), as the profile has it where `timed_profile` names one.
absl::StatusOr<ModelConfig> LoadPlayedModelConfig(const std::string& model_path,
                                                  const std::string& timed_profile);

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

#endif  // COMMON_ENGINE_TIMED_TIMED_PROFILE_H_
