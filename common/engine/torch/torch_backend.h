// Finds and loads the torch plugin, only when it is needed. Linking libtorch would cost every
// process 170 MB and half a second before main, and a process that computes with Baton's own
// kernels does not need it. Rejected: two binaries, with and without it.
#ifndef COMMON_ENGINE_TORCH_TORCH_BACKEND_H_
#define COMMON_ENGINE_TORCH_TORCH_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/plugin_interface.h"

namespace baton {

// Where the plugin may be for an executable at this absolute path, in order of preference: beside
// it, in ../lib/baton (an installation), in its runfiles (a Bazel output).
std::vector<std::string> TorchPluginPaths(const std::string& executable);
// For the running executable.
absl::StatusOr<std::vector<std::string>> OwnTorchPluginPaths();

// Loads the first of `paths` that exists. It is never unloaded, since torch can't be. NOT_FOUND
// names the paths; FAILED_PRECONDITION says why an existing plugin can't be used. Call it before
// other threads read the environment: it tells OpenBLAS the type of the CPU.
absl::StatusOr<const TorchPlugin*> LoadTorchPlugin(const std::vector<std::string>& paths);

// The plugin of the running executable.
absl::StatusOr<const TorchPlugin*> LoadTorchPlugin();

// Loads the plugin and, with it, the layers. The errors of LoadTorchPlugin; UNIMPLEMENTED for a
// device on which this libtorch does not compute, FAILED_PRECONDITION for one that this host does
// not have.
absl::StatusOr<std::unique_ptr<StageModel>> LoadTorchStageModel(const ExecutorOptions& options);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_BACKEND_H_
