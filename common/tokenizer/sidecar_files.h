// What the files beside tokenizer.json say about its tokens: which begin and end a text, and how a
// conversation is written.
#ifndef COMMON_TOKENIZER_SIDECAR_FILES_H_
#define COMMON_TOKENIZER_SIDECAR_FILES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

struct TokenRoles {
  std::optional<std::string> bos_token;  // by content (tokenizer_config.json)
  std::optional<std::string> eos_token;  // by content (tokenizer_config.json)
  std::optional<int32_t> bos_id;         // generation_config.json, else config.json
  std::vector<int32_t> eos_ids;          // generation_config.json, else config.json
  std::string chat_template;             // Jinja source; empty if there is none
};

// Reads tokenizer_config.json, generation_config.json, config.json and chat_template.jinja in
// `directory`; each may be missing. A file that is there and malformed is an error that names it.
absl::StatusOr<TokenRoles> LoadTokenRoles(const std::string& directory);

// The content of a file of at most `max_bytes`; NotFound if there is none.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, size_t max_bytes);

}  // namespace baton

#endif  // COMMON_TOKENIZER_SIDECAR_FILES_H_
