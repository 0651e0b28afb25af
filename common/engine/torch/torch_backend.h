// libtorch behind the seam: loaded when it is asked for, and only then. It costs every process that
// links it 170 MB and half a second before main; no process that computes with Baton's own kernels
// needs it (rejected: a binary with and one without).
#ifndef COMMON_ENGINE_TORCH_TORCH_BACKEND_H_
#define COMMON_ENGINE_TORCH_TORCH_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/executor_options.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/plugin_interface.h"

namespace baton {

// Where the plugin may lie for an executable at this absolute path, best first: beside it, in
// ../lib/baton (an installation), in its runfiles (a Bazel output).
std::vector<std::string> TorchPluginPaths(const std::string& executable);

// Loads the first of `paths` that exists, for good: torch cannot be unloaded. NOT_FOUND names the
// paths, FAILED_PRECONDITION says why a plugin that is there can't be used. Before other threads
// read the environment, since it tells OpenBLAS which CPU this is.
absl::StatusOr<const TorchPlugin*> LoadTorchPlugin(const std::vector<std::string>& paths);

// The plugin of the running executable.
absl::StatusOr<const TorchPlugin*> LoadTorchPlugin();

// Loads the plugin, and by it the layers. The errors of LoadTorchPlugin; UNIMPLEMENTED for a device
// that this libtorch does not compute on, FAILED_PRECONDITION for one that this host does not have.
absl::StatusOr<std::unique_ptr<StageModel>> LoadTorchStageModel(const ExecutorOptions& options);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_BACKEND_H_
