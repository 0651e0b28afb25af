// What the files beside tokenizer.json say about its tokens: which begin and end a text, and how a
// conversation is written.
#ifndef COMMON_TOKENIZER_SIDECAR_FILES_H_
#define COMMON_TOKENIZER_SIDECAR_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// A chat template as it stands in a file.
struct ChatTemplateSource {
  std::string file;  // Its name within the directory.
  std::string jinja;
};

struct TokenRoles {
  std::optional<std::string> bos_token;  // by content (tokenizer_config.json)
  std::optional<std::string> eos_token;  // by content (tokenizer_config.json)
  std::optional<int32_t> bos_id;         // generation_config.json, else config.json
  std::vector<int32_t> eos_ids;          // generation_config.json, else config.json
  // tokenizer_config.json: whether a text is put between them; tokenizer.json's post-processor, if
  // it adds tokens, says so itself.
  bool add_bos_token = false;
  bool add_eos_token = false;
  // Tokens by role, by content: bos_token, eos_token, unk_token, sep_token, pad_token, cls_token,
  // mask_token (tokenizer_config.json).
  std::map<std::string, std::string> named_tokens;
  // By name; "default" is for plain conversations.
  std::map<std::string, ChatTemplateSource> chat_templates;
};

// Reads tokenizer_config.json, generation_config.json, config.json, chat_template.jinja and
// additional_chat_templates/*.jinja in `directory`; each may be missing. Templates in files of
// their own replace those of tokenizer_config.json that have their names. A file that is there and
// malformed is an error that names it.
absl::StatusOr<TokenRoles> LoadTokenRoles(const std::string& directory);

// The content of a file of at most `max_bytes`; NotFound if there is none.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, size_t max_bytes);

}  // namespace baton

#endif  // COMMON_TOKENIZER_SIDECAR_FILES_H_
