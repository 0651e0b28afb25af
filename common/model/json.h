// Parsing JSON of untrusted files: bounded depth, no duplicate keys, no exceptions.
#ifndef COMMON_MODEL_JSON_H_
#define COMMON_MODEL_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton {

inline constexpr int kMaxJsonDepth = 32;

// InvalidArgument, beginning with `file`, when `text` is not JSON, nests deeper than kMaxJsonDepth
// or repeats a key within an object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file);

// The whole file at `path`; NotFound when it can't be opened, InvalidArgument past `bytes_max`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

}  // namespace baton

#endif  // COMMON_MODEL_JSON_H_
