#include "common/preflight/model_files.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/engine/requirements.h"
#include "common/model/generation_defaults.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"
#include "common/tokenizer/chat/chat_template.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFindings = 4;  // Missing or wrong tensors that are listed.

Finding Error(const char* option, std::string message) {
  return {Finding::Severity::kError, option, std::move(message)};
}

// "org/model", as hubs name models: one slash, no dot segments, the characters they allow.
bool IsHubName(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == path.size()) return false;
  if (path.find('/', slash + 1) != std::string::npos || path[0] == '.' || path[0] == '~') {
    return false;
  }
  for (const char c : path) {
    const bool allowed = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '/' ||
                         c == '-' || c == '_' || c == '.';
    if (!allowed) return false;
  }
  return true;
}

std::string NotADirectory(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    return absl::StrCat("'", path, "' is a file; expected the directory that holds config.json, ",
                        "the .safetensors files and tokenizer.json",
                        absl::EndsWith(path, ".gguf") ? " (GGUF is not supported)" : "");
  }
  std::string message = absl::StrCat("there is no directory '", path, "'");
  if (!IsHubName(path)) return message;
  const std::string name = path.substr(path.find('/') + 1);
  return absl::StrCat(message, "; it looks like the name of a model on a hub. Baton downloads ",
                      "nothing: fetch it first, as with `huggingface-cli download ", path,
                      " --local-dir ", name, "`, then give --model-path ", name);
}

// What a directory without .safetensors weights has instead.
std::string OtherFormat(const std::string& model_path) {
  bool adapter = false;
  bool pickled = false;
  bool gguf = false;
  std::error_code error;
  for (fs::directory_iterator entry(model_path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    adapter |= name == "adapter_model.safetensors" || name == "adapter_model.bin";
    pickled |=
        absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".pth") || absl::EndsWith(name, ".pt");
    gguf |= absl::EndsWith(name, ".gguf");
  }
  if (adapter) return "; it holds an adapter: merge it into its base model and save that";
  if (pickled) {
    return "; it holds pickled weights (.bin, .pth), which Baton does not read: save the model as "
           "safetensors (save_pretrained with safe_serialization=True)";
  }
  if (gguf) return "; it holds GGUF, which Baton does not read";
  return "";
}

// Tensors in the open files or the index that no process of the cluster reads.
std::vector<std::string> UnusedTensors(const WeightReader& reader, const ModelConfig& config) {
  std::set<std::string, std::less<>> found;
  for (const auto& [name, file] : reader.listed()) found.insert(name);
  for (const auto& [file_name, file] : reader.files()) {
    if (file == nullptr) continue;
    for (const auto& [name, tensor] : file->tensors()) found.insert(name);
  }
  for (const WeightSpec& spec : StageWeights(config, 0, config.num_hidden_layers)) {
    found.erase(spec.name);
    found.erase(spec.scale);
  }
  return {found.begin(), found.end()};
}

}  // namespace

absl::Status CheckModelDirectory(const std::string& model_path) {
  std::error_code ignored;
  if (fs::is_directory(model_path, ignored)) return absl::OkStatus();
  return absl::InvalidArgumentError(NotADirectory(model_path));
}

std::optional<ModelConfig> CheckModelConfig(const std::string& model_path, int64_t context_tokens,
                                            std::vector<Finding>& findings) {
  if (const absl::Status directory = CheckModelDirectory(model_path); !directory.ok()) {
    findings.push_back(Error("model_path", std::string(directory.message())));
    return std::nullopt;
  }
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_path, context_tokens);
  if (!config.ok()) {
    std::string message(config.status().message());
    if (absl::IsNotFound(config.status())) absl::StrAppend(&message, OtherFormat(model_path));
    findings.push_back(Error("model_path", std::move(message)));
    return std::nullopt;
  }
  if (const absl::Status runs = CheckModelRuns(*config); !runs.ok()) {
    findings.push_back(Error("model_path", absl::StrCat(model_path, "/", runs.message())));
    return std::nullopt;
  }
  std::error_code ignored;
  if (fs::exists(model_path + "/adapter_config.json", ignored)) {
    findings.push_back(Error(
        "model_path", absl::StrCat(model_path, "/adapter_config.json: an adapter lies beside the ",
                                   "weights, and Baton would not apply it; merge it into them, or "
                                   "take it out of the directory")));
  }
  if (config->eos_token_ids.empty()) {
    findings.push_back({Finding::Severity::kWarning, "model_path",
                        "neither config.json nor generation_config.json names an "
                        "\"eos_token_id\"; only lengths and stop strings end a generation"});
  }
  return *std::move(config);
}

namespace {

// What is wrong with the tensors of `specs`: a missing shard is one problem, not one for each
// tensor.
std::vector<std::string> WrongTensors(WeightReader& reader, const std::vector<WeightSpec>& specs,
                                      ElementType type, bool exactly) {
  std::vector<std::string> messages;
  std::set<std::string> told;
  for (const WeightSpec& spec : specs) {
    const absl::StatusOr<StoredTensor> tensor = FindWeight(reader, spec);
    absl::Status status = tensor.status();
    if (status.ok() && tensor->dtype == DType::kF8E4M3) {
      status = FindScales(reader, spec).status();
    }
    if (status.ok() && exactly) status = CheckStoredAs(spec, *tensor, type);
    if (status.ok() || !told.insert(std::string(status.message())).second) continue;
    messages.emplace_back(status.message());
  }
  return messages;
}

}  // namespace

WeightTypes CheckWeights(const std::string& model_path, const ModelConfig& config,
                         LayerRange layers, std::optional<ElementType> dtype,
                         std::vector<Finding>& findings) {
  WeightTypes types;
  types.dtype = dtype.value_or(ElementType::kFloat32);
  absl::StatusOr<WeightReader> reader = WeightReader::Open(model_path);
  if (!reader.ok()) {
    std::string message(reader.status().message());
    if (absl::IsNotFound(reader.status())) absl::StrAppend(&message, OtherFormat(model_path));
    findings.push_back(Error("model_path", std::move(message)));
    return types;
  }
  // If that fails, a tensor is missing, which is found below.
  if (!dtype) types.dtype = StoredWeightType(*reader, config).value_or(types.dtype);
  const std::vector<std::string> wrong =
      WrongTensors(*reader, StageWeights(config, layers.begin, layers.end), types.dtype,
                   /*exactly=*/!dtype);
  for (size_t i = 0; i < std::min(wrong.size(), kMaxFindings); ++i) {
    findings.push_back(Error("model_path", wrong[i]));
  }
  if (wrong.size() > kMaxFindings) {
    findings.push_back(
        Error("model_path", absl::StrCat("and ", wrong.size() - kMaxFindings, " more tensors")));
  }
  for (Finding& finding : JudgeUnusedTensors(config, UnusedTensors(*reader, config))) {
    findings.push_back(std::move(finding));
  }
  types.embedding_element_bytes = static_cast<int>(ElementBytes(types.dtype));
  if (layers.begin == 0 && types.dtype == ElementType::kFloat32) {
    const auto embeddings = reader->Find(EmbeddingWeight(config).name);
    if (embeddings.ok()) {
      types.embedding_element_bytes = static_cast<int>(DTypeBytes(embeddings->dtype));
    }
  }
  return types;
}

void CheckGenerationDefaults(const std::string& model_path, std::vector<Finding>& findings) {
  const absl::Status status = LoadGenerationDefaults(model_path).status();
  if (status.ok()) return;
  findings.push_back(
      Error("generation_config", absl::StrCat(status.message(),
                                              "; mend the file, or leave its sampling "
                                              "defaults out with vllm")));
}

TokenizerFiles CheckTokenizer(const std::string& tokenizer_path, const std::string& chat_template,
                              const ModelConfig& config, std::vector<Finding>& findings) {
  const auto tokenizer = Tokenizer::Load(tokenizer_path);
  if (!tokenizer.ok()) {
    std::string message(tokenizer.status().message());
    if (absl::IsNotFound(tokenizer.status())) {
      absl::StrAppend(&message, "; the router needs it to turn text into tokens");
    }
    findings.push_back(Error("tokenizer_path", std::move(message)));
    return {};
  }
  // 0: there is no model to compare with, which is a finding of its own.
  if (config.vocab_size != 0 && (*tokenizer)->vocab_size() > config.vocab_size) {
    findings.push_back({Finding::Severity::kWarning, "tokenizer_path",
                        absl::StrCat("the tokenizer has ids up to ", (*tokenizer)->vocab_size() - 1,
                                     ", the model a vocabulary of ", config.vocab_size,
                                     "; prompts with the ids between are refused")});
  }
  TokenizerFiles files;
  const auto chat = MakeChatTemplate(chat_template, **tokenizer);
  if (!chat.ok()) {
    findings.push_back(Error("chat_template", std::string(chat.status().message())));
  } else if ((*chat)->name() == "unknown") {
    findings.push_back({Finding::Severity::kWarning, "chat_template",
                        "the model has no chat template, and its special tokens belong to no chat "
                        "format that Baton knows; chat completions are refused, plain completions "
                        "work"});
  } else {
    files.chat_template = (*chat)->name();
  }
  std::error_code ignored;
  const auto bytes = fs::file_size(tokenizer_path + "/tokenizer.json", ignored);
  files.bytes = ignored ? 0 : static_cast<int64_t>(bytes);
  return files;
}

namespace {

constexpr size_t kNamed = 3;

// In the order in which they are tried and reported.
enum class Kind {
  kByProduct,
  kMtp,
  kAdapter,
  kQuantized,
  kKvScale,
  kActivationScale,
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
  if (!absl::ConsumePrefix(&name, config.weights_prefix)) return Kind::kElsewhere;
  if (ContainsAny(name, {"rotary_emb.", ".masked_bias", "rope_freqs"})) return Kind::kByProduct;
  const int layer = LayerOf(name);
  if (layer >= config.num_hidden_layers && layer - config.num_hidden_layers < config.mtp_layers) {
    return Kind::kMtp;
  }
  if (ContainsAny(name, {"lora_", "base_model.", "adapter", ".ia3_", "prompt_encoder"})) {
    return Kind::kAdapter;
  }
  if (EndsWithAny(name, {".k_scale", ".v_scale", ".kv_scale"})) return Kind::kKvScale;
  if (config.fp8 && EndsWithAny(name, {".input_scale", ".input_scale_ub"})) {
    return Kind::kActivationScale;
  }
  if (EndsWithAny(name, {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_scale",
                         ".weight_scale_inv", ".weight_scale_2", ".weight_packed", ".weight_shape",
                         ".input_scale", ".weight_zero_point", ".SCB", ".absmax", ".quant_map"}) ||
      absl::StrContains(name, ".quant_state.")) {
    return Kind::kQuantized;
  }
  if (layer >= config.num_hidden_layers) return Kind::kExtraLayer;
  if (layer >= 0 && ContainsAny(name, {".experts.", ".shared_expert", ".mlp.gate.", ".moe.",
                                       ".block_sparse_moe."})) {
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
  return kind != Kind::kMtp && kind != Kind::kKvScale && kind != Kind::kActivationScale &&
         kind != Kind::kTiedHead && kind != Kind::kElsewhere;
}

std::string Reason(Kind kind, const ModelConfig& config) {
  switch (kind) {
    case Kind::kByProduct:
      return "";
    case Kind::kMtp:
      return "layers of multi-token prediction are not run and not loaded";
    case Kind::kAdapter:
      return "adapters are not applied; merge them into the weights first (merge_and_unload of "
             "PEFT)";
    case Kind::kQuantized:
      return "the weights are quantised; Baton reads F32, BF16 and F16, and FP8 as config.json's "
             "\"quantization_config\" describes it";
    case Kind::kKvScale:
      return "scales of a quantised KV cache are not used: KV is kept as it is computed";
    case Kind::kActivationScale:
      return "activations are not rounded to FP8, so that their scales are not used";
    case Kind::kExtraLayer:
      return absl::StrCat("config.json says \"num_hidden_layers\" ", config.num_hidden_layers,
                          ", so these layers would not run");
    case Kind::kExperts:
      if (config.experts.count == 0) return absl::StrCat(config.architecture, " has no experts");
      return absl::StrCat(config.architecture, " with this config.json has no such expert, and ",
                          "without it the model computes something else");
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
