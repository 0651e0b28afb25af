#include "common/preflight/unused_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

constexpr size_t kNamed = 3;

// In the order in which they are tried and reported.
enum class Kind {
  kByProduct,
  kAdapter,
  kQuantized,
  kKvScale,
  kExtraLayer,
  kExperts,
  kBias,
  kNorm,
  kPartOfModel,
  kTiedHead,
  kElsewhere,
};

bool EndsWithAny(absl::string_view name, std::initializer_list<absl::string_view> suffixes) {
  for (const absl::string_view suffix : suffixes) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

bool ContainsAny(absl::string_view name, std::initializer_list<absl::string_view> parts) {
  for (const absl::string_view part : parts) {
    if (absl::StrContains(name, part)) return true;
  }
  return false;
}

// The N of "model.layers.N."; -1 if it is no layer's tensor.
int LayerOf(absl::string_view name) {
  int layer = -1;
  if (!absl::ConsumePrefix(&name, "model.layers.")) return -1;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) ? layer : -1;
}

Kind KindOf(const ModelConfig& config, absl::string_view name) {
  if (ContainsAny(name, {"rotary_emb.", ".masked_bias", "rope_freqs"})) return Kind::kByProduct;
  if (ContainsAny(name, {"lora_", "base_model.", "adapter", ".ia3_", "prompt_encoder"})) {
    return Kind::kAdapter;
  }
  if (EndsWithAny(name, {".k_scale", ".v_scale", ".kv_scale"})) return Kind::kKvScale;
  if (EndsWithAny(name, {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_scale",
                         ".weight_scale_inv", ".weight_scale_2", ".weight_packed", ".weight_shape",
                         ".input_scale", ".weight_zero_point", ".SCB", ".absmax", ".quant_map"}) ||
      absl::StrContains(name, ".quant_state.")) {
    return Kind::kQuantized;
  }
  const int layer = LayerOf(name);
  if (layer >= config.num_hidden_layers) return Kind::kExtraLayer;
  if (layer >= 0 && ContainsAny(name, {".experts.", ".shared_expert", ".mlp.gate.", ".moe."})) {
    return Kind::kExperts;
  }
  if (name == "lm_head.weight" && config.tie_word_embeddings) return Kind::kTiedHead;
  if (!absl::StartsWith(name, "model.") && !absl::StartsWith(name, "lm_head.")) {
    return Kind::kElsewhere;
  }
  if (absl::EndsWith(name, ".bias")) return Kind::kBias;
  if (layer >= 0 && absl::StrContains(name, "norm")) return Kind::kNorm;
  const bool other_tower = layer < 0 && ContainsAny(name, {"vision", "visual", "audio"});
  return other_tower ? Kind::kElsewhere : Kind::kPartOfModel;
}

bool Refused(Kind kind) {
  return kind != Kind::kKvScale && kind != Kind::kTiedHead && kind != Kind::kElsewhere;
}

std::string Reason(Kind kind, const ModelConfig& config) {
  switch (kind) {
    case Kind::kByProduct:
      return "";
    case Kind::kAdapter:
      return "adapters are not applied; merge them into the weights first (merge_and_unload of "
             "PEFT)";
    case Kind::kQuantized:
      return "the weights are quantised; Baton reads F32, BF16 and F16";
    case Kind::kKvScale:
      return "scales of a quantised KV cache are not used: KV is kept as it is computed";
    case Kind::kExtraLayer:
      return absl::StrCat("config.json says \"num_hidden_layers\" ", config.num_hidden_layers,
                          ", so these layers would not run");
    case Kind::kExperts:
      return absl::StrCat(config.architecture, " has no experts");
    case Kind::kBias:
      return absl::StrCat(config.architecture,
                          " with this config.json has no such bias, and without it the model "
                          "computes something else");
    case Kind::kNorm:
      return absl::StrCat(config.architecture,
                          " with this config.json has no such norm, and without it the model "
                          "computes something else");
    case Kind::kPartOfModel:
      return absl::StrCat(config.architecture,
                          " has no such part, and without it the model "
                          "computes something else");
    case Kind::kTiedHead:
      return "config.json ties the head to the embeddings, and those are used";
    case Kind::kElsewhere:
      return "no part of the language model; it is not loaded";
  }
  return "";
}

std::string Named(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamed);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace

std::vector<Finding> JudgeUnusedTensors(const ModelConfig& config,
                                        const std::vector<std::string>& names) {
  std::map<Kind, std::vector<std::string>> by_kind;
  for (const std::string& name : names) {
    const Kind kind = KindOf(config, name);
    if (kind != Kind::kByProduct) by_kind[kind].push_back(name);
  }
  std::vector<Finding> findings;
  for (const auto& [kind, found] : by_kind) {
    const char* const noun = found.size() == 1 ? "unused tensor " : "unused tensors ";
    findings.push_back({Refused(kind) ? Finding::Severity::kError : Finding::Severity::kWarning,
                        "model_path",
                        absl::StrCat(noun, Named(found), ": ", Reason(kind, config))});
  }
  return findings;
}

}  // namespace baton
