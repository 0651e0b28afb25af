#include "common/engine/stage_model.h"

#include "common/engine/cpu_stage_model.h"
#include "common/engine/guard.h"

namespace baton {

absl::StatusOr<std::unique_ptr<StageModel>> LoadStageModel(const ExecutorOptions& options) {
  return GuardLibraries([&] { return CpuStageModel::Create(options); });
}

}  // namespace baton
