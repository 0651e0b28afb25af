#include "common/base/file_stamp.h"

#include <sys/stat.h>

namespace baton {

FileStamp StampOf(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return {};
  return {static_cast<int64_t>(status.st_ino),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
          int64_t{status.st_size}};
}

}  // namespace baton
