// DeepSeek's experts, which other families have as well: some are shared by all tokens, the others
// are chosen within groups.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

constexpr int kMaxInner = 1 << 20;
constexpr int kMaxShared = 64;
constexpr int kMaxMtpLayers = 64;
constexpr double kMaxScaling = 1e3;

absl::Status ParseGroups(const ConfigReader& reader, Experts& experts) {
  BATON_ASSIGN_OR_RETURN(experts.groups, reader.Int("n_group", 1, experts.count));
  if (experts.count % experts.groups != 0) {
    return reader.Error("n_group", absl::StrCat("is ", experts.groups, ", which does not divide ",
                                                "\"n_routed_experts\" (", experts.count, ")"));
  }
  BATON_ASSIGN_OR_RETURN(experts.groups_kept, reader.Int("topk_group", 1, experts.count));
  if (experts.groups_kept > experts.groups) {
    return reader.Error("topk_group", absl::StrCat("is ", experts.groups_kept, ", more than ",
                                                   "\"n_group\" (", experts.groups, ")"));
  }
  const int of_group = experts.count / experts.groups;
  if (experts.group_score == GroupScore::kSumOfTwo && of_group < 2) {
    return reader.Error("n_group", absl::StrCat("is ", experts.groups, ", which leaves each group ",
                                                "one expert; it must have two"));
  }
  if (experts.active <= experts.groups_kept * of_group) return absl::OkStatus();
  return reader.Error(
      "num_experts_per_tok",
      absl::StrCat("is ", experts.active, ", more than the ", experts.groups_kept * of_group,
                   " experts of \"topk_group\" (", experts.groups_kept, ") groups"));
}

// How experts are chosen. Each class knows one score, and V2 two methods.
absl::Status ParseRouter(const ConfigReader& reader, bool sigmoid, Experts& experts) {
  const char* const score = sigmoid ? "sigmoid" : "softmax";
  BATON_RETURN_IF_ERROR(reader.Expect("scoring_func", score, {score}));
  constexpr const char* kGrouped = "group_limited_greedy";
  BATON_ASSIGN_OR_RETURN(const std::string method,
                         reader.StringOr("topk_method", sigmoid ? "noaux_tc" : "greedy"));
  if (sigmoid ? method != "noaux_tc" : method != "greedy" && method != kGrouped) {
    return reader.Unsupported(
        "topk_method",
        absl::StrCat("is \"", method, "\"; supported ",
                     sigmoid ? "is \"noaux_tc\"" : "are \"greedy\" and \"group_limited_greedy\""));
  }
  if (sigmoid) {
    experts.score = ExpertScore::kSigmoid;
    experts.bias = true;
    experts.group_score = GroupScore::kSumOfTwo;
  }
  return sigmoid || method == kGrouped ? ParseGroups(reader, experts) : absl::OkStatus();
}

absl::Status ParseSparseLayers(const ConfigReader& reader, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const int dense,
                         reader.Int("first_k_dense_replace", 0, config.num_hidden_layers));
  BATON_ASSIGN_OR_RETURN(const int step,
                         reader.IntOr("moe_layer_freq", 1, 1, config.num_hidden_layers));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (layer < dense || layer % step != 0) config.experts.dense_layers.push_back(layer);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRoutedExperts(const ConfigReader& reader, bool sigmoid, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(ParseExperts(reader, config, "n_routed_experts"));
  Experts& experts = config.experts;
  BATON_ASSIGN_OR_RETURN(experts.inner, reader.Int("moe_intermediate_size", 1, kMaxInner));
  BATON_ASSIGN_OR_RETURN(const int shared, reader.IntOr("n_shared_experts", 0, 0, kMaxShared));
  experts.shared_inner = shared * experts.inner;
  if (experts.shared_inner > kMaxInner) {
    return reader.Error(
        "n_shared_experts",
        absl::StrCat("is ", shared, ", which makes ", experts.shared_inner,
                     " columns of \"moe_intermediate_size\", more than ", kMaxInner));
  }
  BATON_ASSIGN_OR_RETURN(experts.scaling,
                         reader.Number("routed_scaling_factor", 1e-3, kMaxScaling));
  if (sigmoid) {
    BATON_ASSIGN_OR_RETURN(experts.normalise, reader.BoolOr("norm_topk_prob", true));
  }
  BATON_RETURN_IF_ERROR(ParseRouter(reader, sigmoid, experts));
  BATON_RETURN_IF_ERROR(ParseSparseLayers(reader, config));
  BATON_ASSIGN_OR_RETURN(config.mtp_layers,
                         reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxMtpLayers));
  return absl::OkStatus();
}

}  // namespace baton
