// What a chunk costs a stage, as files have it: the fields are named as StageCost's.
#ifndef COMMON_CHUNKING_STAGE_COST_JSON_H_
#define COMMON_CHUNKING_STAGE_COST_JSON_H_

#include <optional>

#include "common/chunking/stage_cost.h"
#include "common/json/json_section.h"

namespace baton {

// Everything but floor_tokens. "token_us" has to be there; others that are missing are `otherwise`,
// and nullopt says that they have to be there, too. The section fails if `cost` is none (Check).
void ReadStageCost(JsonSection& section, std::optional<double> otherwise, StageCost& cost);

}  // namespace baton

#endif  // COMMON_CHUNKING_STAGE_COST_JSON_H_
