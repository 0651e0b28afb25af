// What to make of tensors in the files that the configuration does not use (README.md has the
// table of kinds).
#ifndef COMMON_PREFLIGHT_UNUSED_TENSORS_H_
#define COMMON_PREFLIGHT_UNUSED_TENSORS_H_

#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/preflight/finding.h"

namespace baton {

// Findings about `names`, tensors beside those of StageWeights(config, all layers): one for each
// kind, naming the first few. Pure.
std::vector<Finding> JudgeUnusedTensors(const ModelConfig& config,
                                        const std::vector<std::string>& names);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_UNUSED_TENSORS_H_
