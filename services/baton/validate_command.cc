// `baton validate`: what a cluster with these options would be, before any weight is loaded.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/config/layer_split.h"
#include "common/config/memory_plan.h"
#include "common/model/model_config.h"
#include "services/baton/commands.h"

namespace baton {
namespace {

// The CPU executor computes in float32 and keeps weights and KV so.
constexpr int64_t kBytesPerElement = 4;

config::ModelShape ShapeOf(const ModelConfig& model) {
  config::ModelShape shape;
  shape.layers = model.num_hidden_layers;
  shape.hidden_size = model.hidden_size;
  shape.heads = model.num_attention_heads;
  shape.kv_heads = model.num_key_value_heads;
  shape.head_dim = model.head_dim;
  shape.intermediate_size = model.intermediate_size;
  shape.vocab_size = model.vocab_size;
  shape.tie_embeddings = model.tie_word_embeddings;
  shape.qkv_bias = model.qkv_bias;
  shape.qk_norm = model.qk_norm;
  shape.weight_bytes = kBytesPerElement;
  shape.kv_bytes = kBytesPerElement;
  return shape;
}

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

absl::Status PrintPlan(const config::ParsedOptions& options) {
  const v1::Options& values = options.values;
  BATON_ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(values.model_path()));
  const config::ModelShape shape = ShapeOf(model);
  BATON_ASSIGN_OR_RETURN(
      const std::vector<LayerRange> split,
      config::SplitLayers(shape.layers, values.pp_size(), values.pp_layer_partition()));
  std::vector<config::ProcessShare> shares = config::ChainShares(split);
  shares.push_back(config::DecodeShare(shape.layers));

  std::printf("\n%-12s %10s %14s %14s %14s %8s %12s\n", "process", "layers", "weights", "KV cache",
              "KV per token", "pages", "KV tokens");
  std::vector<config::MemoryPlan> plans;
  for (size_t i = 0; i < shares.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        const config::MemoryPlan plan,
        config::PlanMemory(shape, shares[i], values.page_size(), values.kv_cache_tokens()));
    const std::string name = i + 1 == shares.size() ? "decode" : absl::StrCat("prefill ", i);
    std::printf("%-12s %10s %14s %14s %14s %8lld %12lld\n", name.c_str(),
                absl::StrCat("[", shares[i].layers.begin, ", ", shares[i].layers.end, ")").c_str(),
                Mib(plan.weight_bytes).c_str(), Mib(plan.kv_bytes).c_str(),
                absl::StrCat(plan.kv_bytes_per_token, " B").c_str(),
                static_cast<long long>(plan.pages), static_cast<long long>(plan.capacity_tokens));
    plans.push_back(plan);
  }
  const int64_t context =
      values.context_length() != 0 ? values.context_length() : model.max_position_embeddings;
  std::printf("\ncontext %lld tokens; longest prompt that fits: %lld tokens\n",
              static_cast<long long>(context),
              static_cast<long long>(config::LongestPrompt(plans, context)));
  return absl::OkStatus();
}

}  // namespace

int RunValidateCommand(const config::ParsedOptions& options) {
  std::fputs(config::EffectiveText(options).c_str(), stdout);
  const absl::Status status = PrintPlan(options);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton validate: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace baton
