// StageCost in files; its fields are named as StageCost's.
#ifndef COMMON_CHUNKING_STAGE_COST_JSON_H_
#define COMMON_CHUNKING_STAGE_COST_JSON_H_

#include <optional>

#include "common/chunking/stage_cost.h"
#include "common/json/json_section.h"

namespace baton {

// Reads all fields except floor_tokens. "token_us" is required. Other missing fields are
// `otherwise`; with nullopt they are required too. The section fails if the cost does not pass
// Check.
void ReadStageCost(JsonSection& section, std::optional<double> otherwise, StageCost& cost);

}  // namespace baton

#endif  // COMMON_CHUNKING_STAGE_COST_JSON_H_
