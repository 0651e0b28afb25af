#include "common/engine/create_executor.h"

#include "common/base/status.h"
#include "common/engine/stage_model.h"
#include "common/engine/threaded_executor.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const ExecutorOptions& options,
                                                         const std::string& failpoint) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<StageModel> model, LoadStageModel(options));
  return std::make_unique<ThreadedExecutor>(std::move(model), failpoint);
}

}  // namespace baton
