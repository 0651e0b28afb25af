// Distinguishes versions of a file without reading it.
#ifndef COMMON_BASE_FILES_H_
#define COMMON_BASE_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// All zero of a file that is not there. A replaced link changes the inode.
struct FileStamp {
  int64_t inode = 0;
  int64_t modified_ns = 0;
  int64_t bytes = 0;
  bool operator==(const FileStamp&) const = default;
};

FileStamp StampOf(const std::string& path);

// Writing a file that others may read at any moment, and that a crash must not leave in pieces.

// `path` holds `text` afterwards, or what it held before: written beside it, to disk, and renamed.
// Blocks. Errors name the path and the system's reason.
absl::Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace baton

#endif  // COMMON_BASE_FILES_H_
