#include "common/engine/create_executor.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/engine/native/cpu_stage_model.h"
#include "common/engine/stage_model.h"
#include "common/engine/timed/timed_stage_model.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {

absl::StatusOr<std::unique_ptr<StageModel>> LoadStageModel(const ExecutorOptions& options) {
  if (options.backend == Backend::kTorch) return LoadTorchStageModel(options);
  if (options.backend == Backend::kTimed) return TimedStageModel::Create(options);
  if (options.device != "cpu") {
    return InvalidField(
        "device",
        absl::StrCat("the native executor computes on the CPU alone, not on ", options.device));
  }
  return GuardLibraries([&] { return CpuStageModel::Create(options); });
}

absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const ExecutorOptions& options,
                                                         const std::string& failpoint) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<StageModel> model, LoadStageModel(options));
  return std::make_unique<ThreadedExecutor>(std::move(model), failpoint);
}

}  // namespace baton
