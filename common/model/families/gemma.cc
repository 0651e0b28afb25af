// Gemma 1, 2 and 3, and the language model of Gemma 3's multimodal checkpoints: gates by GELU,
// norms around both halves of a layer, windows in some layers, soft caps.
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

constexpr double kScalarMin = 1e-6;
constexpr double kScalarMax = 1e9;
constexpr int kMaxPattern = 1 << 12;

// The class takes "gelu", which the first files have, for the approximation as well.
absl::Status ParseActivation(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kTanh = "gelu_pytorch_tanh";
  for (const char* key : {"hidden_activation", "hidden_act"}) {
    BATON_ASSIGN_OR_RETURN(const std::string name, reader.StringOr(key, kTanh));
    const bool old = name == "gelu" && std::string_view(key) == "hidden_act";
    if (name != kTanh && !old) {
      return reader.Unsupported(key,
                                absl::StrCat("is \"", name, "\"; supported is \"", kTanh, "\""));
    }
  }
  config.activation = Activation::kGeluTanh;
  return absl::OkStatus();
}

absl::Status ConfigureGemma(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("use_bidirectional_attention", 0,
                                            "is not supported; a token must see those before it"));
  BATON_RETURN_IF_ERROR(ParseActivation(reader, config));
  BATON_ASSIGN_OR_RETURN(config.qkv_bias, reader.BoolOr("attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.norm_adds_one = config.scaled_embeddings = true;
  if (config.head_dim == 0) config.head_dim = 256;  // The class's; it divides nothing.
  return absl::OkStatus();
}

absl::Status ConfigureGemma1(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("sliding_window", 0, "is not supported for Gemma 1"));
  return ConfigureGemma(reader, config);
}

// Null is no cap; absent is the class's.
absl::StatusOr<double> ParseSoftcap(const ConfigReader& reader, const char* key, double by_class) {
  if (!reader.HasKey(key)) return by_class;
  if (!reader.Has(key)) return 0;
  return reader.Number(key, kScalarMin, kScalarMax);
}

// Every `pattern`th layer sees all tokens, unless config.json lists the layers' types.
absl::Status ParseSlidingLayers(const ConfigReader& reader, int pattern, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(
      const std::vector<size_t> types,
      ParseLayerTypes(reader, config.num_hidden_layers, {"full_attention", "sliding_attention"}));
  config.sliding_layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < config.sliding_layers.size(); ++i) {
    config.sliding_layers[i] =
        types.empty() ? (i + 1) % static_cast<size_t>(pattern) != 0 : types[i] == 1;
  }
  return absl::OkStatus();
}

absl::Status ConfigureWindows(const ConfigReader& reader, int pattern, double softcap,
                              ModelConfig& config) {
  constexpr int kWindow = 4096;
  BATON_RETURN_IF_ERROR(ConfigureGemma(reader, config));
  config.output_norms = true;
  BATON_ASSIGN_OR_RETURN(config.query_scalar,
                         reader.NumberOr("query_pre_attn_scalar", 256, kScalarMin, kScalarMax));
  BATON_ASSIGN_OR_RETURN(config.logit_softcap,
                         ParseSoftcap(reader, "final_logit_softcapping", softcap));
  BATON_RETURN_IF_ERROR(ParseSlidingWindow(reader, kWindow, config));
  return ParseSlidingLayers(reader, pattern, config);
}

absl::Status ConfigureGemma2(const ConfigReader& reader, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.score_softcap, ParseSoftcap(reader, "attn_logit_softcapping", 50));
  return ConfigureWindows(reader, /*pattern=*/2, /*softcap=*/30, config);
}

// transformers up to 4 have "rope_local_base_freq", 5 and later "rope_parameters" by type of layer.
absl::Status ParseSlidingRope(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kKey = "rope_local_base_freq";
  constexpr const char* kType = "sliding_attention";
  constexpr double kThetaMax = 1e15;
  BATON_ASSIGN_OR_RETURN(config.sliding_rope_theta, reader.NumberOr(kKey, 10000, 1, kThetaMax));
  if (!reader.Has("rope_parameters")) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const ConfigReader ropes, reader.Part("rope_parameters"));
  if (!ropes.Has(kType)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const ConfigReader rope, ropes.Part(kType));
  BATON_RETURN_IF_ERROR(rope.Expect("rope_type", "default", {"default"}));
  BATON_ASSIGN_OR_RETURN(config.sliding_rope_theta,
                         rope.NumberOr("rope_theta", config.sliding_rope_theta, 1, kThetaMax));
  return absl::OkStatus();
}

absl::Status ConfigureGemma3(const ConfigReader& reader, ModelConfig& config) {
  config.qk_norm = true;
  BATON_RETURN_IF_ERROR(ParseSlidingRope(reader, config));
  BATON_ASSIGN_OR_RETURN(const int pattern,
                         reader.IntOr("sliding_window_pattern", 6, 1, kMaxPattern));
  return ConfigureWindows(reader, pattern, /*softcap=*/0, config);
}

absl::Status ConfigureGemma3Multimodal(const ConfigReader& reader, ModelConfig& config) {
  config.weights_prefix = "language_model.";
  return ConfigureGemma3(reader, config);
}

constexpr std::array<const char*, 5> kGemma3Keys = {
    "hidden_act", "layer_types", "final_logit_softcapping", "query_pre_attn_scalar"};
constexpr RopeOfClass kGemma3Rope = {1e6, "full_attention", /*stretches_positions=*/false};

}  // namespace

const Family kGemma = {.architecture = "GemmaForCausalLM",
                       .model_type = "gemma",
                       .max_position_embeddings = 8192,
                       .num_key_value_heads = 16,
                       .own_keys = {"hidden_act"},
                       .configure = ConfigureGemma1,
                       .tie_word_embeddings = true};
const Family kGemma2 = {.architecture = "Gemma2ForCausalLM",
                        .model_type = "gemma2",
                        .max_position_embeddings = 8192,
                        .num_key_value_heads = 4,
                        .own_keys = {"hidden_act", "layer_types", "attn_logit_softcapping",
                                     "final_logit_softcapping", "query_pre_attn_scalar"},
                        .configure = ConfigureGemma2,
                        .tie_word_embeddings = true};
const Family kGemma3 = {.architecture = "Gemma3ForCausalLM",
                        .model_type = "gemma3_text",
                        .max_position_embeddings = 131072,
                        .num_key_value_heads = 4,
                        .own_keys = kGemma3Keys,
                        .configure = ConfigureGemma3,
                        .tie_word_embeddings = true,
                        .rope = kGemma3Rope};
// Its files leave out what the class of the part has.
const Family kGemma3Multimodal = {.architecture = "Gemma3ForConditionalGeneration",
                                  .model_type = "gemma3",
                                  .max_position_embeddings = 131072,
                                  .num_key_value_heads = 4,
                                  .own_keys = kGemma3Keys,
                                  .configure = ConfigureGemma3Multimodal,
                                  .num_attention_heads = 8,
                                  .vocab_size = 262208,
                                  .tie_word_embeddings = true,
                                  .rope = kGemma3Rope,
                                  .part = "text_config"};

}  // namespace baton
