// Distinguishes versions of a file without reading it.
#ifndef COMMON_BASE_FILE_STAMP_H_
#define COMMON_BASE_FILE_STAMP_H_

#include <cstdint>
#include <string>

namespace baton {

// All zero of a file that is not there. A replaced link changes the inode.
struct FileStamp {
  int64_t inode = 0;
  int64_t modified_ns = 0;
  int64_t bytes = 0;
  bool operator==(const FileStamp&) const = default;
};

FileStamp StampOf(const std::string& path);

}  // namespace baton

#endif  // COMMON_BASE_FILE_STAMP_H_
