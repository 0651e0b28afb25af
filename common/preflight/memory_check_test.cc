// What a machine's memory and cores leave for a cluster, and what would fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using model_testing::ModelDirectory;
using preflight_testing::Check;
using preflight_testing::kGib;
using preflight_testing::kRoomy;
using preflight_testing::Make;
using ::testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;

TEST(MemoryCheckTest, AShortageNamesTheLargestPoolThatFits) {
  const ModelDirectory model = Make("shortage");
  const std::vector<std::string> args = {"--model-path=" + model.path,
                                         "--kv-cache-tokens=16777216"};
  const Machine small = {kGib, "MemAvailable"};
  const PreflightReport report = Check(config::Command::kUp, args, small);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(report.status().message());
  EXPECT_THAT(message, HasSubstr("kv_cache_tokens: needs "));
  EXPECT_THAT(message, HasSubstr(" more than the 1.0 GiB that MemAvailable leaves"));
  const size_t at = message.find("that fits is ");
  ASSERT_NE(at, std::string::npos) << message;
  const int64_t fits = std::stoll(message.substr(at + std::strlen("that fits is ")));

  const auto with = [&](int64_t tokens) {
    return Check(config::Command::kUp, {args[0], "--kv-cache-tokens=" + std::to_string(tokens)},
                 small);
  };
  EXPECT_TRUE(with(fits).status().ok()) << with(fits).status();
  EXPECT_FALSE(with(fits + 64).status().ok());

  std::vector<std::string> warned = args;
  warned.emplace_back("--memory-check=warn");
  EXPECT_TRUE(Check(config::Command::kUp, warned, small).status().ok());
  EXPECT_EQ(Check(config::Command::kUp, warned, small).findings.size(), 1u);
  warned.back() = "--memory-check=off";
  EXPECT_TRUE(Check(config::Command::kUp, warned, small).findings.empty());
}

TEST(MemoryCheckTest, WhereNoPoolFitsItSaysWhatWould) {
  const ModelDirectory model = Make("no_pool");
  const Machine tiny = {20 * kMib, "its control group's limit"};
  const auto message = [&](const char* decodes) {
    return std::string(Check(config::Command::kUp, {"--model-path=" + model.path, decodes}, tiny)
                           .status()
                           .message());
  };
  EXPECT_THAT(message("--decodes=3"), HasSubstr("fewer --prefill-chains and --decodes"));
  EXPECT_THAT(message("--decodes=1"), HasSubstr("a smaller model"));
}

TEST(MemoryCheckTest, AFractionSizesThePoolOfAllProcessesTogether) {
  const ModelDirectory model = Make("fraction");
  const Machine machine = {8 * kGib, "MemAvailable"};
  const auto sized = [&](std::vector<std::string> args) {
    args.push_back("--model-path=" + model.path);
    PreflightReport report = Check(config::Command::kUp, args, machine);
    EXPECT_TRUE(report.status().ok()) << report.status();
    return report;
  };
  const PreflightReport half = sized({"--mem-fraction-static=0.5"});
  const int64_t static_bytes = half.memory->weights() + half.memory->kv();
  EXPECT_LE(static_bytes, 4 * kGib);
  EXPECT_GT(static_bytes, 4 * kGib - 64 * half.memory->kv_per_token());
  EXPECT_EQ(half.values.kv_cache_tokens(), half.memory->kv_tokens);
  EXPECT_GT(half.values.kv_cache_tokens(),
            sized({"--mem-fraction-static=0.5", "--decodes=3"}).values.kv_cache_tokens());
  EXPECT_EQ(
      sized({"--mem-fraction-static=0.5", "--max-total-tokens=6400"}).values.kv_cache_tokens(),
      6400);
  EXPECT_THAT(
      PlannedArguments(half),
      testing::ElementsAre("--kv-cache-tokens=" + std::to_string(half.values.kv_cache_tokens()),
                           "--threads=1", "--mem-fraction-static=", "--memory-check=off"));

  const PreflightReport none =
      Check(config::Command::kUp, {"--mem-fraction-static=0.0001", "--model-path=" + model.path},
            machine);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("the weights alone take"));
}

TEST(MemoryCheckTest, CoresAreSharedAmongTheWorkersThatUpStarts) {
  const ModelDirectory model = Make("threads");
  Machine machine = kRoomy;
  machine.cores = 9;
  const auto threads = [&](config::Command command, std::vector<std::string> args) {
    args.push_back("--model-path=" + model.path);
    const PreflightReport report = Check(command, args, machine);
    EXPECT_TRUE(report.status().ok()) << report.status();
    return report.values.threads();
  };
  using config::Command;
  EXPECT_EQ(threads(Command::kUp, {"--pp-size=2", "--decodes=2"}), 2);
  EXPECT_EQ(threads(Command::kUp, {"--pp-size=2", "--decodes=20"}), 1);
  EXPECT_EQ(threads(Command::kUp, {"--threads=5"}), 5);
  EXPECT_EQ(threads(Command::kServe, {"--pp-size=2"}), 4);
  EXPECT_EQ(threads(Command::kWorker, {}), 9);
  EXPECT_EQ(threads(Command::kWorker, {"--disaggregation-mode=decode"}), 9);
}

}  // namespace
}  // namespace baton
