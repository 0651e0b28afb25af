#include "common/engine/stage_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/cpu_stage_model.h"
#include "common/engine/guard.h"
#include "common/engine/timed/timed_stage_model.h"
#include "common/engine/torch/loaded_stage_model.h"

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

}  // namespace baton
