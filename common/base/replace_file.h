// Writing a file that others may read at any moment, and that a crash must not leave in pieces.
#ifndef COMMON_BASE_REPLACE_FILE_H_
#define COMMON_BASE_REPLACE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// `path` holds `text` afterwards, or what it held before: written beside it, to disk, and renamed.
// Blocks. Errors name the path and the system's reason.
absl::Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace baton

#endif  // COMMON_BASE_REPLACE_FILE_H_
