// The profile of a timed executor: a model's sizes and the times of its steps. It is a file whose
// format README.md describes. People write it, so everything in it is checked.
#ifndef COMMON_ENGINE_TIMED_TIMED_PROFILE_H_
#define COMMON_ENGINE_TIMED_TIMED_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/chunking/stage_cost.h"
#include "common/model/model_config.h"
#include "common/types/kv_layout.h"

namespace baton {

// The time of a step in which every sequence has one token, in microseconds of the whole model:
//   overhead + sequence * sequences + context * tokens of all sequences
struct TimedDecodeCost {
  double overhead_us = 0;
  double sequence_us = 0;
  double context_us = 0;
};

struct TimedProfile {
  std::string name;
  // These replace config.json's. Keys and values have one type, weights and activations another.
  int layers = 0;
  int dense_layers = 0;  // The first ones, which compute otherwise than the others.
  int hidden_size = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int planes = 2;  // Planes of KV; see KvLayout.
  int context_tokens = 0;
  ElementType dtype = ElementType::kBFloat16;
  ElementType kv_dtype = ElementType::kBFloat16;
  // A chunk takes a stage `stage_overhead_us` plus the stage's share of `prefill`, which is for all
  // layers.
  double stage_overhead_us = 0;
  StageCost prefill;
  TimedDecodeCost decode;
  // What a dense layer takes of another's overhead and work per token or sequence.
  double dense_prefill = 1;
  double dense_decode = 1;
  double noise_relative = 0;  // Standard deviation of a step's time, as a fraction of it.
  uint64_t noise_seed = 1;
  uint64_t text_hash = 0;  // The file's hash.

  // What these layers take of `prefill`; and a stage that holds them.
  StageCost OfLayers(LayerRange some) const;
  StageCost OfStage(LayerRange stage_layers) const;
  // As ModelConfig::LayerWork, of prefill.
  std::vector<double> LayerWork() const;
  // `config` with this profile's sizes: the model that the rest of Baton sees.
  ModelConfig Apply(ModelConfig config) const;
  // As FingerprintStage: equal if the files are equal.
  ModelFingerprint Fingerprint(const ModelConfig& config, LayerRange stage_layers) const;
};

// InvalidArgument names `file`, the line and the field.
absl::StatusOr<TimedProfile> ParseTimedProfile(std::string_view text, const std::string& file);
// NotFound if there is no such file.
absl::StatusOr<TimedProfile> LoadTimedProfile(const std::string& path);

// LoadModelConfig(model_path, context_tokens), with the profile's sizes if `timed_profile` is not
// empty.
absl::StatusOr<ModelConfig> LoadPlayedModelConfig(const std::string& model_path,
                                                  int64_t context_tokens,
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

// The times of the steps of a process that holds some of a profile's layers. The timed stage model
// waits for so long; the simulator (services/simulator) adds it to virtual time.
class TimedSteps {
 public:
  TimedSteps(const TimedProfile& profile, LayerRange layers);

  // Microseconds, without noise.
  double Micros(const TimedStep& step) const;
  // The microseconds of the next step, with its noise; advances the random numbers.
  int64_t NextMicros(const TimedStep& step);

 private:
  double Noise();

  double share_ = 1;  // The fraction of all layers that this process holds,
  double work_ = 1;   // and of what they compute for a step of single tokens, beside attention.
  StageCost prefill_;
  TimedDecodeCost decode_;
  double noise_relative_ = 0;
  Random random_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_TIMED_PROFILE_H_
