// Whether this machine has the libtorch that some options need, before anybody needs it.
#ifndef COMMON_ENGINE_TORCH_CHECK_H_
#define COMMON_ENGINE_TORCH_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Loads the first of `paths` that exists in a process of its own, which then ends: what it takes,
// half a second and 170 MB, this one never holds. NOT_FOUND if there is none, FAILED_PRECONDITION
// with the loader's words if it can't be loaded; both say what to install. Before there are
// threads.
absl::Status CheckTorch(const std::vector<std::string>& paths);

// The plugin of the running executable.
absl::Status CheckTorch();

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_CHECK_H_
