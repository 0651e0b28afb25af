// OpenAI's file of tokens ("tiktoken.model"): a line for each, its bytes in base64 and its rank,
// which is its id too. Kimi's models bring one, and say in tokenizer_config.json what their special
// tokens are.
#ifndef COMMON_TOKENIZER_TIKTOKEN_FILE_H_
#define COMMON_TOKENIZER_TIKTOKEN_FILE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer_json.h"

namespace baton {

// `file`: the tokens. `config`: the text of tokenizer_config.json; empty: there is none. The words
// are cut as Kimi's are. INVALID_ARGUMENT with the line, or the key, for what is malformed.
absl::StatusOr<TokenizerSpec> ParseTiktoken(std::string_view file, std::string_view config);

}  // namespace baton

#endif  // COMMON_TOKENIZER_TIKTOKEN_FILE_H_
