// The config.json of a random model.
#ifndef COMMON_MODEL_RANDOM_CONFIG_H_
#define COMMON_MODEL_RANDOM_CONFIG_H_

#include "common/model/make_model.h"
#include "nlohmann/json.hpp"

namespace baton {

// What no model can have is refused when the result is parsed.
nlohmann::ordered_json RandomConfig(const RandomModelOptions& options);

}  // namespace baton

#endif  // COMMON_MODEL_RANDOM_CONFIG_H_
