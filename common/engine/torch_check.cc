#include "common/engine/torch_check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

// The child ends itself after this time, so that a loader that hangs does not block the caller.
constexpr unsigned kLoadSeconds = 60;
constexpr char kInstall[] = "install the package baton-torch, which brings libtorch";

// Runs in the child. Writes the loader's message to `fd`, nothing on success.
[[noreturn]] void TryToLoad(const std::string& path, int fd) {
  alarm(kLoadSeconds);
  if (dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    const char* said = dlerror();
    if (write(fd, said, std::strlen(said)) < 0) _exit(1);
  }
  _exit(0);
}

// Reads until the other end is closed. The loader's message is one line.
std::string ReadAll(int fd) {
  constexpr size_t kMaxBytes = 4096;
  std::string text;
  char buffer[512];
  while (text.size() < kMaxBytes) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

absl::Status CheckTorch(const std::vector<std::string>& paths) {
  const auto path = std::find_if(paths.begin(), paths.end(), [](const std::string& candidate) {
    std::error_code error;
    return std::filesystem::exists(candidate, error);
  });
  if (path == paths.end()) {
    return absl::NotFoundError(absl::StrCat("the torch backend is not installed: ", kInstall,
                                            " (looked for ", absl::StrJoin(paths, ", "), ")"));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child == 0) TryToLoad(*path, ends[1]);
  close(ends[1]);
  std::string said = ReadAll(ends[0]);
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    return absl::InternalError(absl::StrCat("loading ", *path, ": ", std::strerror(errno)));
  }
  if (WIFSIGNALED(status)) said = absl::StrCat("ended by signal ", WTERMSIG(status));
  if (said.empty() && status == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the torch backend ", *path, " can't be loaded: ", said, ": ", kInstall));
}

absl::Status CheckTorch() {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> paths, OwnTorchPluginPaths());
  return CheckTorch(paths);
}

}  // namespace baton
