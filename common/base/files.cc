#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace baton {

FileStamp StampOf(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return {};
  return {static_cast<int64_t>(status.st_ino),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
          int64_t{status.st_size}};
}

namespace {

absl::Status WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "write");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "fsync");
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, std::string_view text) {
  // Two processes that write the same file must not write into one another's.
  const std::string beside = absl::StrCat(path, ".", getpid(), ".new");
  const int file = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, beside);
  absl::Status status = WriteAll(file, text);
  if (close(file) != 0 && status.ok()) status = absl::ErrnoToStatus(errno, "close");
  if (status.ok() && std::rename(beside.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, "rename");
  }
  if (status.ok()) return status;
  unlink(beside.c_str());
  return absl::Status(status.code(), absl::StrCat(path, ": ", std::string(status.message())));
}

}  // namespace baton
