// What tests of model families check of a config.json.
#ifndef COMMON_MODEL_TESTING_CONFIG_CHECKS_H_
#define COMMON_MODEL_TESTING_CONFIG_CHECKS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/model/fingerprint.h"
#include "common/model/model_config.h"
#include "nlohmann/json.hpp"

namespace baton::testing {

using Json = nlohmann::ordered_json;

inline ModelConfig Parse(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

struct Refusal {
  const char* key;
  Json value;
  const char* message;
};

// Each value alone in the place of its key.
inline void ExpectRefused(const Json& whole, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    Json json = whole;
    json[refusal.key] = refusal.value;
    EXPECT_THAT(std::string(ParseModelConfig(json.dump(), "config.json").status().message()),
                ::testing::HasSubstr(refusal.message))
        << refusal.value;
  }
}

// Two processes that differ in any of this must not pass KV to one another.
inline void ExpectOtherFingerprints(const Json& whole,
                                    const std::vector<std::pair<const char*, Json>>& changes) {
  const uint64_t fingerprint = ConfigFingerprint(Parse(whole));
  for (const auto& [key, value] : changes) {
    Json json = whole;
    json[key] = value;
    EXPECT_NE(ConfigFingerprint(Parse(json)), fingerprint) << key;
  }
}

}  // namespace baton::testing

#endif  // COMMON_MODEL_TESTING_CONFIG_CHECKS_H_
