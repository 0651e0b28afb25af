#include "common/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"
#include "common/model/config_reader.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Bounds keep every product of two sizes in 63 bits and every allocation that follows explicable.
constexpr int kMaxHidden = 1 << 17;
constexpr int kMaxIntermediate = 1 << 20;
constexpr int kMaxLayers = 1 << 12;
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxHeadDim = 1 << 10;
constexpr int kMaxVocabulary = 1 << 23;

// Keys that other models of the same tensors' names use to change the mathematics. Each is accepted
// at its neutral value only.
struct MathKey {
  const char* key;
  double neutral;
};
constexpr MathKey kMathKeys[] = {
    {"mlp_bias", 0},
    {"partial_rotary_factor", 1},
    {"rotary_pct", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"query_pre_attn_scalar", 0},
    {"attention_multiplier", 0},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"scale_emb", 1},
    {"scale_depth", 1},
    {"clip_qkv", 0},
    {"alibi", 0},
    {"attention_chunk_size", 0},
    {"no_rope_layers", 0},
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"n_shared_experts", 0},
    {"shared_expert_intermediate_size", 0},
    {"kv_lora_rank", 0},
    {"add_cross_attention", 0},
    {"pruned_heads", 0},
    {"use_qk_norm", 0},
};

// As many as the family's class has by default where config.json doesn't say; where that can't be,
// as many as query heads. The weights' shapes show whether it is right.
absl::Status ParseKvHeads(const ConfigReader& reader, const Family& family, ModelConfig& config) {
  const int heads = config.num_attention_heads;
  const int by_class = family.num_key_value_heads;
  const int otherwise = by_class != 0 && heads % by_class == 0 ? by_class : heads;
  BATON_ASSIGN_OR_RETURN(config.num_key_value_heads,
                         reader.IntOr("num_key_value_heads", otherwise, 1, kMaxHeads));
  if (heads % config.num_key_value_heads == 0) return absl::OkStatus();
  return reader.Error(
      "num_key_value_heads",
      absl::StrCat("is ", config.num_key_value_heads,
                   ", which does not divide \"num_attention_heads\" (", heads, ")"));
}

// A size that config.json must give unless the family's class has a default of its own.
absl::StatusOr<int> ParseSize(const ConfigReader& reader, const char* key, int by_class, int high) {
  return by_class != 0 ? reader.IntOr(key, by_class, 1, high) : reader.Int(key, 1, high);
}

absl::Status ParseShapes(const ConfigReader& reader, const Family& family, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.hidden_size, reader.Int("hidden_size", 1, kMaxHidden));
  BATON_ASSIGN_OR_RETURN(config.intermediate_size,
                         reader.Int("intermediate_size", 1, kMaxIntermediate));
  BATON_ASSIGN_OR_RETURN(config.num_hidden_layers, reader.Int("num_hidden_layers", 1, kMaxLayers));
  BATON_ASSIGN_OR_RETURN(
      config.num_attention_heads,
      ParseSize(reader, "num_attention_heads", family.num_attention_heads, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(config.vocab_size,
                         ParseSize(reader, "vocab_size", family.vocab_size, kMaxVocabulary));
  BATON_ASSIGN_OR_RETURN(
      config.max_position_embeddings,
      reader.IntOr("max_position_embeddings", family.max_position_embeddings, 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(config.rms_norm_eps, reader.NumberOr("rms_norm_eps", 1e-6, 0, 1));
  if (reader.Has("head_dim")) {
    BATON_ASSIGN_OR_RETURN(config.head_dim, reader.Int("head_dim", 1, kMaxHeadDim));
  }
  return ParseKvHeads(reader, family, config);
}

absl::Status ExpectBlock(const ConfigReader& keys, const char* key) {
  const Json* block = keys.Find(key);
  if (block == nullptr || *block == Json::array({kFp8Block, kFp8Block})) return absl::OkStatus();
  return keys.Unsupported(key, absl::StrCat("must be [", kFp8Block, ", ", kFp8Block, "]"));
}

// One "config_groups" entry of compressed-tensors.
absl::Status ExpectFp8Group(const ConfigReader& group) {
  const Json* value = group.Find("weights");
  if (value == nullptr || !value->is_object()) return group.Error("weights", "must be an object");
  const ConfigReader weights = group.Inside("weights");
  BATON_RETURN_IF_ERROR(weights.Expect("type", "int", {"float"}));
  BATON_ASSIGN_OR_RETURN(const int bits, weights.IntOr("num_bits", 8, 1, 64));
  if (bits != 8) {
    return weights.Unsupported("num_bits", absl::StrCat("is ", bits, "; supported is 8"));
  }
  BATON_ASSIGN_OR_RETURN(const bool symmetric, weights.BoolOr("symmetric", true));
  if (!symmetric) return weights.Unsupported("symmetric", "must be true");
  BATON_RETURN_IF_ERROR(weights.Expect("strategy", "tensor", {"tensor", "channel", "block"}));
  return ExpectBlock(weights, "block_structure");
}

absl::Status ExpectFp8Groups(const ConfigReader& keys) {
  constexpr const char* kGroups = "config_groups";
  BATON_RETURN_IF_ERROR(keys.Expect("format", "", {"float-quantized", "naive-quantized"}));
  const Json* groups = keys.Find(kGroups);
  if (groups == nullptr || !groups->is_object()) return keys.Error(kGroups, "must be an object");
  const ConfigReader inside = keys.Inside(kGroups);
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) return inside.Error(name.c_str(), "must be an object");
    BATON_RETURN_IF_ERROR(ExpectFp8Group(inside.Inside(name.c_str())));
  }
  return absl::OkStatus();
}

// FP8 as DeepSeek and Qwen publish it, in blocks, and as compressed-tensors, AutoFP8, FBGEMM and
// ModelOpt write it. What is not converted need not be read: each tensor says by its type what it
// is. Nor what they do with activations, which are not rounded here.
absl::Status ParseQuantization(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kBlock = "weight_block_size";
  const char* key = reader.Has("compression_config") ? "compression_config" : "quantization_config";
  const Json* value = reader.Find(key);
  if (value == nullptr || (value->is_object() && value->empty())) return absl::OkStatus();
  if (!value->is_object()) return reader.Error(key, "must be an object");
  const ConfigReader keys = reader.Inside(key);
  BATON_RETURN_IF_ERROR(
      keys.Expect("quant_method", "", {"fp8", "compressed-tensors", "fbgemm_fp8", "modelopt"}));
  BATON_ASSIGN_OR_RETURN(const std::string method, keys.StringOr("quant_method", ""));
  config.fp8 = true;
  if (method == "fp8") {
    BATON_RETURN_IF_ERROR(keys.Expect("fmt", "e4m3", {"e4m3", "float8_e4m3fn"}));
    BATON_RETURN_IF_ERROR(keys.Expect("activation_scheme", "dynamic", {"dynamic", "static"}));
    BATON_RETURN_IF_ERROR(ExpectBlock(keys, kBlock));
    if (keys.Has(kBlock)) return absl::OkStatus();
  } else if (method == "compressed-tensors") {
    BATON_RETURN_IF_ERROR(ExpectFp8Groups(keys));
  } else if (method == "modelopt") {
    BATON_RETURN_IF_ERROR(keys.Expect("quant_algo", "", {"FP8"}));
  }
  config.fp8_scale_suffix = "_scale";
  return absl::OkStatus();
}

absl::Status RefuseUnsupportedMath(const ConfigReader& reader, const Family& family,
                                   const ModelConfig& config) {
  for (const MathKey& math : kMathKeys) {
    if (family.Owns(math.key)) continue;
    const std::string why = "would change the mathematics in a way that is not supported";
    BATON_RETURN_IF_ERROR(reader.RefuseUnless(math.key, math.neutral, why));
    for (const char* rope : kRopeKeys) {
      const Json* object = reader.Find(rope);
      if (object == nullptr || !object->is_object()) continue;
      BATON_RETURN_IF_ERROR(reader.Inside(rope).RefuseUnless(math.key, math.neutral, why));
    }
  }
  if (!family.Owns("hidden_act"))
    BATON_RETURN_IF_ERROR(reader.Expect("hidden_act", "silu", {"silu"}));
  if (family.Owns("layer_types")) return absl::OkStatus();
  return ParseLayerTypes(reader, config.num_hidden_layers, {"full_attention"}).status();
}

// One id or a list of ids.
absl::Status ParseEos(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kKey = "eos_token_id";
  const Json* value = reader.Find(kKey);
  if (value == nullptr) return absl::OkStatus();
  std::vector<int32_t> ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= config.vocab_size) {
      return reader.Error(kKey, absl::StrCat("must be ids inside the vocabulary of ",
                                             config.vocab_size, ", got ", id.dump()));
    }
    ids.push_back(id.get<int32_t>());
  }
  config.eos_token_ids = std::move(ids);
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> LoadConfigJson(const std::string& model_path) {
  const std::string file = absl::StrCat(model_path, "/config.json");
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxConfigBytes));
  return ParseModelConfig(text, file);
}

absl::StatusOr<const Family*> ParseFamily(const ConfigReader& reader) {
  constexpr const char* kKey = "architectures";
  const Json* names = reader.Find(kKey);
  if (names == nullptr) return reader.Error(kKey, "is missing; it is mandatory");
  if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
    return reader.Error(kKey, "must be a list of one name");
  }
  const auto& name = names->front().get_ref<const std::string&>();
  const Family* family = FindFamily(name);
  if (family == nullptr) {
    return reader.Unsupported(kKey, absl::StrCat("names ", name, "; supported are ",
                                                 absl::StrJoin(KnownArchitectures(), ", ")));
  }
  BATON_ASSIGN_OR_RETURN(const std::string type, reader.StringOr("model_type", family->model_type));
  if (type != family->model_type && type != family->other_model_type) {
    return reader.Error("model_type", absl::StrCat("is \"", type, "\", but ", name, " has \"",
                                                   family->model_type, "\""));
  }
  return family;
}

}  // namespace

bool ModelConfig::sparse(int layer) const {
  return experts.count > 0 && (layer + 1) % experts.step == 0 &&
         std::ranges::find(experts.dense_layers, layer) == experts.dense_layers.end();
}

int ModelConfig::SparseLayers(int begin, int end) const {
  if (experts.count == 0) return 0;
  int count = 0;
  for (int layer = begin; layer < end; ++layer) count += sparse(layer) ? 1 : 0;
  return count;
}

namespace {

// Those of latent attention in one layer, without the output projection.
int64_t LatentParameters(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads;
  const int64_t queries = heads * latent.key_dim();
  const int64_t query = latent.q_rank == 0 ? hidden * queries
                                           : (hidden + 1) * latent.q_rank + latent.q_rank * queries;
  return query + hidden * latent.row() + latent.kv_rank +
         latent.kv_rank * heads * (latent.nope_dim + latent.value_dim);
}

}  // namespace

int64_t ModelConfig::LayerParameters(int begin, int end) const {
  const int64_t hidden = hidden_size;
  const int64_t qkv = int64_t{query_size()} + 2 * int64_t{kv_size()};
  int64_t shared = (output_norms ? 4 : 2) * hidden + hidden * attended_size() +
                   (latent.kv_rank > 0 ? LatentParameters(*this) : hidden * qkv);
  if (qkv_bias) shared += qkv;
  if (o_bias) shared += hidden;
  shared += q_norm_size() + k_norm_size();
  const int64_t inner = intermediate_size;
  const int64_t dense = 3 * hidden * inner + (mlp_bias ? 2 * inner + hidden : 0);
  const int64_t expert = 3 * hidden * experts.inner;
  const int64_t sparse_layers = SparseLayers(begin, end);
  return (end - begin) * shared + (end - begin - sparse_layers) * dense +
         sparse_layers * (experts.count * (hidden + (experts.bias ? 1 : 0)) +
                          experts.held * expert + 3 * hidden * experts.shared_inner);
}

void ModelConfig::Stretch(int64_t context_tokens) {
  if (context_tokens <= max_position_embeddings || LongestContext() == max_position_embeddings) {
    return;
  }
  max_position_embeddings = LongestContext();
  rope_scaling->divisors = rope_scaling->long_divisors;
}

int ModelConfig::LongestContext() const {
  return rope_scaling.has_value() ? std::max(max_position_embeddings, rope_scaling->long_positions)
                                  : max_position_embeddings;
}

std::vector<double> ModelConfig::LayerWork() const {
  ModelConfig active = *this;
  active.experts.held = experts.active;
  std::vector<double> work;
  work.reserve(static_cast<size_t>(num_hidden_layers));
  for (int layer = 0; layer < num_hidden_layers; ++layer) {
    work.push_back(static_cast<double>(active.LayerParameters(layer, layer + 1)));
  }
  return work;
}

float ModelConfig::attention_scale() const {
  if (latent.kv_rank == 0) {
    return 1 / std::sqrt(query_scalar > 0 ? static_cast<float>(query_scalar)
                                          : static_cast<float>(head_dim));
  }
  const double magnitude = rope_scaling.has_value() ? rope_scaling->score_magnitude : 1;
  return static_cast<float>(magnitude * magnitude / std::sqrt(latent.key_dim()));
}

int64_t ModelConfig::Parameters() const {
  const int64_t embeddings = int64_t{vocab_size} * hidden_size;
  return LayerParameters(0, num_hidden_layers) + hidden_size +
         (tie_word_embeddings ? 1 : 2) * embeddings;
}

int64_t ModelConfig::ActiveParameters() const {
  ModelConfig active = *this;
  active.experts.held = experts.active;
  return active.Parameters();
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const Json object, ParseJson(json, file));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  }
  const ConfigReader whole(object, file);
  ModelConfig config;
  BATON_ASSIGN_OR_RETURN(const Family* family, ParseFamily(whole));
  config.architecture = family->architecture;
  BATON_ASSIGN_OR_RETURN(const ConfigReader reader, whole.Part(family->part));
  // Either object may tell what concerns a whole checkpoint.
  const auto either = [&](const char* key) -> const ConfigReader& {
    return whole.Has(key) ? whole : reader;
  };
  BATON_RETURN_IF_ERROR(ParseShapes(reader, *family, config));
  BATON_RETURN_IF_ERROR(RefuseUnsupportedMath(reader, *family, config));
  constexpr const char* kTied = "tie_word_embeddings";
  BATON_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                         either(kTied).BoolOr(kTied, family->tie_word_embeddings));
  // Transformers up to 4 write torch_dtype, 5 and later dtype.
  const char* const dtype = either("torch_dtype").Has("torch_dtype") ? "torch_dtype" : "dtype";
  BATON_ASSIGN_OR_RETURN(config.torch_dtype, either(dtype).StringOr(dtype, ""));
  BATON_RETURN_IF_ERROR(ParseQuantization(whole, config));
  BATON_RETURN_IF_ERROR(family->configure(reader, config));
  if (config.head_dim % 2 != 0) {
    return reader.Error("head_dim", absl::StrCat("must be even for rope, is ", config.head_dim));
  }
  BATON_ASSIGN_OR_RETURN(Rope rope, ParseRope(reader, config.max_position_embeddings,
                                              config.rope_dim(), family->rope));
  config.rope_theta = rope.theta;
  config.rope_scaling = std::move(rope.scaling);
  config.max_position_embeddings = rope.max_positions;
  BATON_RETURN_IF_ERROR(ParseEos(either("eos_token_id"), config));
  return config;
}

absl::StatusOr<std::vector<int32_t>> ConfigEosTokenIds(const std::string& model_path) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config, LoadConfigJson(model_path));
  return std::move(config.eos_token_ids);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_path, int64_t context_tokens) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config, LoadConfigJson(model_path));
  config.Stretch(context_tokens);

  const std::string generation_file = absl::StrCat(model_path, "/generation_config.json");
  const absl::StatusOr<std::string> generation = ReadTextFile(generation_file, kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return config;
  BATON_RETURN_IF_ERROR(generation.status());
  BATON_ASSIGN_OR_RETURN(const Json object, ParseJson(*generation, generation_file));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(generation_file, ": must be a JSON object"));
  }
  BATON_RETURN_IF_ERROR(ParseEos(ConfigReader(object, generation_file), config));
  return config;
}

absl::Status ValidateLayerRange(const ModelConfig& config, int layer_begin, int layer_end) {
  if (layer_begin < 0 || layer_begin >= layer_end || layer_end > config.num_hidden_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers [", layer_begin, ", ", layer_end,
                                                   ") must be a non-empty range of the model's ",
                                                   config.num_hidden_layers));
  }
  return absl::OkStatus();
}

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const Family* family : Families()) names.emplace_back(family->architecture);
  return names;
}

}  // namespace baton
