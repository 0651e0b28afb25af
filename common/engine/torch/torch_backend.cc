#include "common/engine/torch/torch_backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr char kFileName[] = "libbaton_torch.so";

// OpenBLAS 0.3.21, torch's BLAS in Debian, treats CPUs that it does not know as if they had only
// SSE3. It reads the variable when it is loaded; a user's own value is kept.
void NameCpuToOpenBlas() {
  constexpr char kName[] = "OPENBLAS_CORETYPE";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    setenv(kName, "SkylakeX", /*replace=*/0);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    setenv(kName, "Haswell", /*replace=*/0);
  }
}

absl::Status Unusable(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the torch backend ", path, " can't be used: ", why));
}

}  // namespace

std::vector<std::string> TorchPluginPaths(const std::string& executable) {
  const std::filesystem::path directory = std::filesystem::path(executable).parent_path();
  return {
      directory / kFileName,
      directory.parent_path() / "lib" / "baton" / kFileName,
      std::filesystem::path(executable + ".runfiles") / "baton" / "common" / "engine" / "torch" /
          kFileName,
  };
}

absl::StatusOr<std::vector<std::string>> OwnTorchPluginPaths() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  return TorchPluginPaths(self);
}

absl::StatusOr<const TorchPlugin*> LoadTorchPlugin(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    NameCpuToOpenBlas();
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Unusable(path, dlerror());
    const auto function = reinterpret_cast<TorchPluginFunction>(dlsym(library, kTorchPluginSymbol));
    if (function == nullptr) return Unusable(path, "it exports no plugin");
    const TorchPlugin* plugin = function();
    if (plugin->version == kTorchPluginVersion) return plugin;
    return Unusable(path, absl::StrCat("it is of version ", plugin->version, ", expected ",
                                       kTorchPluginVersion));
  }
  return absl::NotFoundError(
      absl::StrCat("the torch backend is not installed; looked for ", absl::StrJoin(paths, ", ")));
}

absl::StatusOr<const TorchPlugin*> LoadTorchPlugin() {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> paths, OwnTorchPluginPaths());
  return LoadTorchPlugin(paths);
}

absl::StatusOr<std::unique_ptr<StageModel>> LoadTorchStageModel(const ExecutorOptions& options) {
  BATON_ASSIGN_OR_RETURN(const TorchPlugin* const torch, LoadTorchPlugin());
  torch->set_threads(options.threads);
  return torch->make_stage_model(options);
}

}  // namespace baton
