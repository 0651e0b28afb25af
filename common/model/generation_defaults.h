// What a model's generation_config.json says of sampling, for requests that leave it out.
#ifndef COMMON_MODEL_GENERATION_DEFAULTS_H_
#define COMMON_MODEL_GENERATION_DEFAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Fields as transformers names them; nullopt: the file doesn't say. `"do_sample": false` is a
// temperature of 0 here, as transformers decodes greedily then; where do_sample is absent the other
// values count all the same, as for vLLM and SGLang, since most files that have them leave it out.
struct GenerationDefaults {
  std::optional<double> temperature;         // >= 0
  std::optional<int> top_k;                  // -1, 0: all tokens.
  std::optional<double> top_p;               // (0, 1]
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // (0, 2]
  std::optional<int> max_new_tokens;         // >= 1

  // "temperature 0.6, top_k 20"; empty if the file says nothing.
  std::string ToString() const;
};

// `file` names it in messages. InvalidArgument names the key and the file.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(std::string_view json,
                                                           const std::string& file);

// Reads generation_config.json in `model_path`; empty defaults if the file is absent.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_path);

}  // namespace baton

#endif  // COMMON_MODEL_GENERATION_DEFAULTS_H_
