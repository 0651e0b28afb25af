// Checks whether this machine has the libtorch that some options need, before a worker needs it.
#ifndef COMMON_ENGINE_TORCH_CHECK_H_
#define COMMON_ENGINE_TORCH_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Loads the first of `paths` that exists in a child process, which then exits: the half second and
// 170 MB of libtorch stay out of this process. NOT_FOUND if none exists. FAILED_PRECONDITION with
// the loader's message if it can't be loaded. Both say what to install. Call it before the process
// has threads, since it forks.
absl::Status CheckTorch(const std::vector<std::string>& paths);

// The plugin of the running executable.
absl::Status CheckTorch();

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_CHECK_H_
