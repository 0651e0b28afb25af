// A model family: what an architecture's name in config.json means in terms of shared blocks. A new
// family is one file beside this one and a line in family.cc's table; blocks that it shares with
// others need no change anywhere else.
#ifndef COMMON_MODEL_FAMILIES_FAMILY_H_
#define COMMON_MODEL_FAMILIES_FAMILY_H_

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/config_reader.h"
#include "common/model/model_config.h"
#include "common/model/rope_scaling.h"

namespace baton {

struct Family {
  const char* architecture;
  // The model_type that config.json gives with this architecture.
  const char* model_type;
  // What transformers' configuration class has where config.json leaves it out.
  int max_position_embeddings;
  int num_key_value_heads;  // 0: as many as query heads.
  // Keys that change other families' mathematics and that `configure` reads itself.
  std::array<const char*, 5> own_keys;
  // Sets the features in which the family departs from Llama's mathematics and refuses the keys
  // that it can't honour. Shapes are parsed before, except head_dim when it is absent.
  absl::Status (*configure)(const ConfigReader& reader, ModelConfig& config);
  std::string_view other_model_type = "";  // What models have that differ in their tokenizer alone.
  // Further defaults of the class; 0: config.json must say.
  int num_attention_heads = 0;
  int vocab_size = 0;
  bool tie_word_embeddings = false;
  RopeOfClass rope = {};
  const char* part = "";  // The object of config.json that describes it; "": all of it.

  bool Owns(std::string_view key) const {
    return std::ranges::any_of(own_keys,
                               [&](const char* own) { return own != nullptr && key == own; });
  }
};

extern const Family kLlama;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen3Moe;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kDeepSeekV2;
extern const Family kDeepSeekV3;
extern const Family kGlm4Moe;
extern const Family kMiniMaxM2;
extern const Family kPhi3;
extern const Family kGemma;
extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kGemma3Multimodal;

std::span<const Family* const> Families();

// nullptr when no family has this architecture.
const Family* FindFamily(std::string_view architecture);

// head_dim where config.json leaves it out and the family derives it: hidden_size / heads.
absl::Status DeriveHeadDim(const ConfigReader& reader, ModelConfig& config);

// The number of experts, under the names that transformers writes or `key`, and of those that a
// token goes to. InvalidArgument for none, for more active ones than there are, and for more in all
// layers than any list of tensors should be made for.
absl::Status ParseExperts(const ConfigReader& reader, ModelConfig& config,
                          const char* key = nullptr);

// DeepSeek's experts: the numbers of routed and shared ones and how they are chosen, by a sigmoid
// with a bias (V3) or a softmax (V2); and which layers have them. Layers of multi-token prediction
// are skipped.
absl::Status ParseRoutedExperts(const ConfigReader& reader, bool sigmoid, ModelConfig& config);

// For classes whose "rms_norm_eps" and "rope_theta" have other defaults than Llama's.
absl::Status RequireNormAndTheta(const ConfigReader& reader);

// "partial_rotary_factor", beside the rope's own keys or among them: the part of a head that is
// turned. Call it when head_dim is known.
absl::Status ParsePartialRotary(const ConfigReader& reader, double otherwise, ModelConfig& config);

// "sliding_window": null, or so large that it hides nothing, is no window.
absl::Status ParseSlidingWindow(const ConfigReader& reader, int otherwise, ModelConfig& config);

// "layer_types", each layer's index among `known`; nothing if config.json doesn't say.
// Unimplemented for other types.
absl::StatusOr<std::vector<size_t>> ParseLayerTypes(const ConfigReader& reader, int layers,
                                                    std::initializer_list<const char*> known);

}  // namespace baton

#endif  // COMMON_MODEL_FAMILIES_FAMILY_H_
