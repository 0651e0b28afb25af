// What tests of the checks begin with: a model directory, and what Preflight says of a command.
#ifndef COMMON_PREFLIGHT_PREFLIGHT_FIXTURE_H_
#define COMMON_PREFLIGHT_PREFLIGHT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/model/make_model.h"
#include "common/model/testing/model_directory.h"
#include "common/preflight/preflight.h"

namespace baton::preflight_testing {

constexpr int64_t kGib = int64_t{1} << 30;
const Machine kRoomy = {64 * kGib, "MemAvailable"};

inline PreflightReport Check(config::Command command, std::vector<std::string> args,
                             const Machine& machine = kRoomy) {
  const auto parsed = config::ParseOptions(command, {std::move(args), {}, nullptr});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return Preflight(*parsed, machine);
}

inline model_testing::ModelDirectory Make(const std::string& name,
                                          const RandomModelOptions& options = {}) {
  model_testing::ModelDirectory model = {testing::TempDir() + "/preflight_" + name};
  std::filesystem::remove_all(model.path);
  EXPECT_TRUE(MakeRandomModel(model.path, options).ok());
  return model;
}

}  // namespace baton::preflight_testing

#endif  // COMMON_PREFLIGHT_PREFLIGHT_FIXTURE_H_
