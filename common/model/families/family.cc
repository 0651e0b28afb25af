#include "common/model/families/family.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int kMaxExperts = 1 << 12;
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 16;

}  // namespace

std::span<const Family* const> Families() {
  // A table, not self-registering objects: those vanish when a static library is linked without
  // alwayslink, and only in the shipped binary.
  static constexpr const Family* kFamilies[] = {
      &kLlama,   &kQwen2,      &kQwen3,      &kQwen3Moe, &kMistral,
      &kMixtral, &kDeepSeekV2, &kDeepSeekV3, &kGlm4Moe,  &kMiniMaxM2,
      &kPhi3,    &kGemma,      &kGemma2,     &kGemma3,   &kGemma3Multimodal};
  return kFamilies;
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family* family : Families()) {
    if (architecture == family->architecture) return family;
  }
  return nullptr;
}

absl::Status DeriveHeadDim(const ConfigReader& reader, ModelConfig& config) {
  if (config.head_dim != 0) return absl::OkStatus();
  if (config.hidden_size % config.num_attention_heads != 0) {
    return reader.Error(
        "num_attention_heads",
        absl::StrCat("is ", config.num_attention_heads, ", which does not divide \"hidden_size\" (",
                     config.hidden_size, "), and \"head_dim\" is not given"));
  }
  config.head_dim = config.hidden_size / config.num_attention_heads;
  return absl::OkStatus();
}

absl::Status ParseExperts(const ConfigReader& reader, ModelConfig& config, const char* key) {
  // transformers up to 4 calls Qwen's num_experts; 5 and Mixtral have the other name.
  constexpr const char* kNames[] = {"num_experts", "num_local_experts"};
  if (key == nullptr) key = reader.Has(kNames[0]) ? kNames[0] : kNames[1];
  Experts& experts = config.experts;
  BATON_ASSIGN_OR_RETURN(experts.count, reader.Int(key, 1, kMaxExperts));
  if (reader.Has(kNames[0]) && reader.Has(kNames[1])) {
    BATON_ASSIGN_OR_RETURN(const int other, reader.Int(kNames[1], 1, kMaxExperts));
    if (other != experts.count) {
      return reader.Error(
          kNames[1], absl::StrCat("is ", other, ", but \"", kNames[0], "\" is ", experts.count));
    }
  }
  if (int64_t{experts.count} * config.num_hidden_layers > kMaxExpertsOfAllLayers) {
    return reader.Error(
        key, absl::StrCat("is ", experts.count, ", which with \"", "num_hidden_layers\" (",
                          config.num_hidden_layers, ") makes more than ", kMaxExpertsOfAllLayers));
  }
  experts.held = experts.count;
  BATON_ASSIGN_OR_RETURN(experts.active, reader.Int("num_experts_per_tok", 1, kMaxExperts));
  if (experts.active <= experts.count) return absl::OkStatus();
  return reader.Error("num_experts_per_tok", absl::StrCat("is ", experts.active, ", more than \"",
                                                          key, "\" (", experts.count, ")"));
}

absl::Status RequireNormAndTheta(const ConfigReader& reader) {
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    const bool told =
        reader.Has(key) || (std::string_view(key) == "rope_theta" && reader.Has("rope_parameters"));
    if (!told) return reader.Error(key, "is missing; it is mandatory");
  }
  return absl::OkStatus();
}

absl::Status ParsePartialRotary(const ConfigReader& reader, double otherwise, ModelConfig& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  std::optional<double> told;
  if (reader.Has(kKey)) {
    BATON_ASSIGN_OR_RETURN(told, reader.Number(kKey, 0, 1));
  }
  for (const char* rope : kRopeKeys) {
    const nlohmann::json* object = reader.Find(rope);
    if (object == nullptr || !object->is_object()) continue;  // ParseRope says what is wrong.
    const ConfigReader keys = reader.Inside(rope);
    if (!keys.Has(kKey)) continue;
    BATON_ASSIGN_OR_RETURN(const double factor, keys.Number(kKey, 0, 1));
    if (told.value_or(factor) != factor) {
      return keys.Error(kKey, absl::StrCat("differs from another \"", kKey, "\""));
    }
    told = factor;
  }
  const double factor = told.value_or(otherwise);
  const int rotated = static_cast<int>(config.head_dim * factor);  // Rounded as transformers does.
  if (rotated < 2 || rotated % 2 != 0) {
    return reader.Error(
        kKey, absl::StrCat("is ", factor, ", which turns ", rotated, " of the ", config.head_dim,
                           " elements of a head; they must be pairs"));
  }
  config.rotated = rotated < config.head_dim ? rotated : 0;
  return absl::OkStatus();
}

absl::Status ParseSlidingWindow(const ConfigReader& reader, int otherwise, ModelConfig& config) {
  constexpr const char* kKey = "sliding_window";
  // Null and absent differ here: null switches the window off.
  if (reader.HasKey(kKey) && !reader.Has(kKey)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const int window, reader.IntOr(kKey, otherwise, 1, kMaxPositions));
  if (window < config.max_position_embeddings) config.sliding_window = window;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<size_t>> ParseLayerTypes(const ConfigReader& reader, int layers,
                                                    std::initializer_list<const char*> known) {
  constexpr const char* kKey = "layer_types";
  std::vector<size_t> types;
  const nlohmann::json* list = reader.Find(kKey);
  if (list == nullptr) return types;
  if (!list->is_array() || list->size() != static_cast<size_t>(layers)) {
    return reader.Error(kKey, absl::StrCat("must list \"num_hidden_layers\" (", layers, ") types"));
  }
  types.reserve(list->size());
  for (const nlohmann::json& type : *list) {
    const auto* const found =
        std::ranges::find_if(known, [&](const char* name) { return type == name; });
    if (found == known.end()) {
      return reader.Unsupported(kKey, absl::StrCat("has ", type.dump(), "; supported is \"",
                                                   absl::StrJoin(known, "\" or \""), "\""));
    }
    types.push_back(static_cast<size_t>(found - known.begin()));
  }
  return types;
}

}  // namespace baton
