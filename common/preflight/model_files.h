// A model directory, checked without reading a weight.
#ifndef COMMON_PREFLIGHT_MODEL_FILES_H_
#define COMMON_PREFLIGHT_MODEL_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/preflight/finding.h"
#include "common/types/kv_layout.h"

namespace baton {

// InvalidArgument where `model_path` is no directory; a name of a model hub ("org/model") is told
// from a mistyped path.
absl::Status CheckModelDirectory(const std::string& model_path);

// The configuration, stretched for `context_tokens` (LoadModelConfig), if the directory has one
// that Baton runs; else what is wrong, in `findings`.
std::optional<ModelConfig> CheckModelConfig(const std::string& model_path, int64_t context_tokens,
                                            std::vector<Finding>& findings);

// How the weights of a stage will lie in memory.
struct WeightTypes {
  ElementType dtype = ElementType::kFloat32;
  int embedding_element_bytes = 4;  // Where they are among the layers.
};

// Whether the files hold every tensor of `layers` (and of the ends of the model among them) with
// the shape and type that `config` demands, and what else they hold. `dtype` is what was asked for;
// if nothing was, the checkpoint decides and has to hold all matrices in one type.
WeightTypes CheckWeights(const std::string& model_path, const ModelConfig& config,
                         LayerRange layers, std::optional<ElementType> dtype,
                         std::vector<Finding>& findings);

// Whether the sampling defaults of generation_config.json can be honoured.
void CheckGenerationDefaults(const std::string& model_path, std::vector<Finding>& findings);

struct TokenizerFiles {
  int64_t bytes = 0;          // Size of tokenizer.json.
  std::string chat_template;  // Where it is from; empty if there is none.
};

// Whether the tokenizer loads and belongs to the model, and whether there is a chat template and it
// is one.
TokenizerFiles CheckTokenizer(const std::string& tokenizer_path, const std::string& chat_template,
                              const ModelConfig& config, std::vector<Finding>& findings);

// What to make of tensors in the files that the configuration does not use (README.md has the
// table of kinds).

// Findings about `names`, tensors beside those of StageWeights(config, all layers): one for each
// kind, naming the first few. Pure.
std::vector<Finding> JudgeUnusedTensors(const ModelConfig& config,
                                        const std::vector<std::string>& names);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MODEL_FILES_H_
