// `baton model info` and `baton model make`.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/model/make_model.h"
#include "common/model/model_config.h"
#include "common/preflight/model_files.h"
#include "services/baton/commands.h"

namespace baton {
namespace {

absl::StatusOr<std::string> ArchitectureOf(const std::string& family) {
  static constexpr std::pair<std::string_view, const char*> kFamilies[] = {
      {"llama", "LlamaForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},
      {"qwen3-moe", "Qwen3MoeForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"mixtral", "MixtralForCausalLM"},
      {"deepseek-v2", "DeepseekV2ForCausalLM"},
      {"deepseek-v3", "DeepseekV3ForCausalLM"},
      {"glm4-moe", "Glm4MoeForCausalLM"},
      {"minimax-m2", "MiniMaxM2ForCausalLM"},
      {"phi3", "Phi3ForCausalLM"},
      {"gemma", "GemmaForCausalLM"},
      {"gemma2", "Gemma2ForCausalLM"},
      {"gemma3", "Gemma3ForCausalLM"},
  };
  for (const auto& [name, architecture] : kFamilies) {
    if (name == family) return std::string(architecture);
  }
  return InvalidField("family", absl::StrCat("is no family that can be made: ", family));
}

absl::StatusOr<DType> DTypeOf(const std::string& dtype) {
  if (dtype == "float32") return DType::kF32;
  if (dtype == "float16") return DType::kF16;
  if (dtype == "bfloat16") return DType::kBF16;
  return InvalidField("dtype", absl::StrCat("must be float32, float16 or bfloat16, got ", dtype));
}

absl::Status Info(const std::string& model_path) {
  BATON_RETURN_IF_ERROR(CheckModelDirectory(model_path));
  BATON_ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(model_path));
  const auto row = [](const char* name, const std::string& value) {
    std::printf("%-22s %s\n", name, value.c_str());
  };
  row("architecture", model.architecture);
  const auto millions = [](int64_t count) {
    return absl::StrFormat("%.2f M", static_cast<double>(count) / 1e6);
  };
  const int sparse_layers = model.SparseLayers(0, model.num_hidden_layers);
  row("parameters", millions(model.Parameters()) +
                        (sparse_layers == 0 ? std::string()
                                            : absl::StrCat(", of which a token uses ",
                                                           millions(model.ActiveParameters()))));
  row("layers", absl::StrCat(model.num_hidden_layers));
  row("hidden size", absl::StrCat(model.hidden_size));
  const LatentAttention& latent = model.latent;
  row("heads", latent.kv_rank > 0
                   ? absl::StrCat(model.num_attention_heads, " over latent rows of ",
                                  latent.kv_rank, " + ", latent.rope_dim, "; keys of ",
                                  latent.key_dim(), ", values of ", latent.value_dim)
                   : absl::StrCat(model.num_attention_heads, " query, ", model.num_key_value_heads,
                                  " key-value, of ", model.head_dim, " each"));
  row("intermediate size", absl::StrCat(model.intermediate_size));
  if (sparse_layers > 0) {
    row("experts",
        absl::StrCat(model.experts.count, ", ", model.experts.active, " for each token, of size ",
                     model.experts.inner, ", in ", sparse_layers, " layers",
                     model.experts.shared_inner == 0
                         ? std::string()
                         : absl::StrCat("; shared ones of size ", model.experts.shared_inner)));
  }
  if (model.sliding_window > 0) {
    const auto sliding = std::ranges::count(model.sliding_layers, true);
    row("window",
        absl::StrCat(model.sliding_window, " tokens",
                     model.sliding_layers.empty() ? std::string()
                                                  : absl::StrCat(" in ", sliding, " layers")));
  }
  row("vocabulary",
      absl::StrCat(model.vocab_size,
                   model.tie_word_embeddings ? " tokens, tied embeddings" : " tokens"));
  row("context", absl::StrCat(model.max_position_embeddings, " tokens"));
  row("rope",
      absl::StrCat("theta ", model.rope_theta, model.rope_scaling.has_value() ? ", " : "",
                   model.rope_scaling.has_value()
                       ? absl::StrCat(RopeKindName(model.rope_scaling->kind), " scaling")
                       : "",
                   model.rotated > 0 ? absl::StrCat(", over ", model.rotated, " of a head's ",
                                                    model.head_dim, " elements")
                                     : "",
                   model.sliding_rope_theta > 0
                       ? absl::StrCat("; theta ", model.sliding_rope_theta, " with a window")
                       : ""));
  const auto soft_cap = [&](const char* name, double cap) {
    if (cap > 0) row(name, absl::StrCat("soft at ", cap));
  };
  soft_cap("attention scores", model.score_softcap);
  soft_cap("logits", model.logit_softcap);
  row("end of sequence", absl::StrJoin(model.eos_token_ids, ", "));
  row("torch_dtype", model.torch_dtype.empty() ? "not said" : model.torch_dtype);
  const auto kv_bytes = [&](ElementType type) {
    return absl::StrCat(model.kv(/*page_size=*/1, type).BandBytes({0, model.num_hidden_layers}),
                        " bytes (", ElementTypeName(type), ")");
  };
  row("KV per token",
      absl::StrCat(kv_bytes(ElementType::kBFloat16), ", ", kv_bytes(ElementType::kFloat32)));
  return absl::OkStatus();
}

absl::Status Make(const v1::Options& options) {
  RandomModelOptions model;
  BATON_ASSIGN_OR_RETURN(model.architecture, ArchitectureOf(options.family()));
  BATON_ASSIGN_OR_RETURN(model.dtype, DTypeOf(options.dtype()));
  model.hidden_size = static_cast<int>(options.hidden_size());
  model.intermediate_size = static_cast<int>(options.intermediate_size());
  model.num_experts = static_cast<int>(options.experts());
  model.num_experts_per_tok = static_cast<int>(options.experts_per_token());
  model.moe_intermediate_size = static_cast<int>(options.expert_size());
  model.sliding_window = static_cast<int>(options.sliding_window());
  model.num_hidden_layers = static_cast<int>(options.layers());
  model.num_attention_heads = static_cast<int>(options.heads());
  model.num_key_value_heads = static_cast<int>(options.kv_heads());
  model.head_dim = static_cast<int>(
      options.head_dim() != 0 ? options.head_dim() : options.hidden_size() / options.heads());
  model.vocab_size = static_cast<int>(options.vocab_size());
  model.max_position_embeddings = static_cast<int>(options.max_position());
  model.tie_word_embeddings = options.tie_embeddings();
  model.shards = static_cast<int>(options.shards());
  model.seed = static_cast<uint64_t>(options.seed());
  BATON_RETURN_IF_ERROR(MakeRandomModel(options.out(), model));
  std::printf("wrote %s\n", options.out().c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunModelInfoCommand(const config::ParsedOptions& options) {
  return Info(options.values.model_path());
}

absl::Status RunModelMakeCommand(const config::ParsedOptions& options) {
  return Make(options.values);
}

}  // namespace baton
