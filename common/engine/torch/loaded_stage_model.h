// The plugin's stage model as the rest of Baton sees it.
#ifndef COMMON_ENGINE_TORCH_LOADED_STAGE_MODEL_H_
#define COMMON_ENGINE_TORCH_LOADED_STAGE_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/executor_options.h"
#include "common/engine/stage_model.h"

namespace baton {

// Loads the plugin, and by it the layers. The errors of LoadTorchPlugin; UNIMPLEMENTED for a device
// that this libtorch does not compute on, FAILED_PRECONDITION for one that this host does not have.
absl::StatusOr<std::unique_ptr<StageModel>> LoadTorchStageModel(const ExecutorOptions& options);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_LOADED_STAGE_MODEL_H_
