// Parses untrusted JSON of files and clients: bounded depth, no exceptions.
#ifndef COMMON_JSON_PARSE_JSON_H_
#define COMMON_JSON_PARSE_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton {

inline constexpr int kMaxJsonDepth = 32;

enum class DuplicateKeys {
  kRefuse,
  kKeepLast,  // For large documents whose readers all keep the last one: looking costs as much as
              // parsing.
};

// InvalidArgument, beginning with `name`, when `text` is not JSON, nests deeper than kMaxJsonDepth
// or repeats a key within an object. `name` is what the text is to the reader of the message: a
// file, "the body"; empty where the caller says it.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& name,
                                         DuplicateKeys duplicates = DuplicateKeys::kRefuse);

// The whole file at `path`; NotFound when it can't be opened, InvalidArgument past `bytes_max`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

}  // namespace baton

#endif  // COMMON_JSON_PARSE_JSON_H_
