#include "common/engine/executor.h"

#include "common/engine/cpu_executor.h"
#include "common/engine/guard.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const ExecutorOptions& options) {
  return GuardLibraries([&] { return CpuExecutor::Create(options); });
}

}  // namespace baton
