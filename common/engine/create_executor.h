// Creates executors and stage models of every backend.
#ifndef COMMON_ENGINE_CREATE_EXECUTOR_H_
#define COMMON_ENGINE_CREATE_EXECUTOR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/executor.h"
#include "common/engine/stage_model.h"

namespace baton {

// Loads the weights of the layer range and allocates the pages. The only factory of stage models.
absl::StatusOr<std::unique_ptr<StageModel>> LoadStageModel(const ExecutorOptions& options);

// The same, with an executor around the model. `failpoint` is hit at the start of every step
// (common/base/failpoint.h).
absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const ExecutorOptions& options,
                                                         const std::string& failpoint);

}  // namespace baton

#endif  // COMMON_ENGINE_CREATE_EXECUTOR_H_
