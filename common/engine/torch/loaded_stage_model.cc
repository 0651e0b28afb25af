#include "common/engine/torch/loaded_stage_model.h"

#include "common/base/status.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {

absl::StatusOr<std::unique_ptr<StageModel>> LoadTorchStageModel(const ExecutorOptions& options) {
  BATON_ASSIGN_OR_RETURN(const TorchPlugin* const torch, LoadTorchPlugin());
  torch->set_threads(options.threads);
  return torch->make_stage_model(options);
}

}  // namespace baton
