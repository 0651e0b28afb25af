// What --chunk-profile does before a start, and --pp-layer-partition=auto.
#include "common/preflight/chunk_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using model_testing::ModelDirectory;
using model_testing::WriteFile;
using preflight_testing::Check;
using preflight_testing::Make;
using ::testing::HasSubstr;

// A profile of two stages of this model, of which the second takes three times as long a layer.
class ChunkCostsTest : public testing::Test {
 protected:
  ChunkCostsTest() : model_(Make("profile")), path_(model_.path + "/costs.json") {
    profile_.on = Check(config::Command::kUp, {"--model-path=" + model_.path}).chunks.here;
    profile_.stages = {{.layers = 2, .cost = kCost, .plans = 30},
                       {.layers = 2, .cost = kCost.Times(3), .plans = 20}};
  }
  PreflightReport With(std::vector<std::string> args,
                       config::Command command = config::Command::kUp) const {
    WriteFile(path_, ChunkProfileText(profile_));
    args.insert(args.begin(), {"--model-path=" + model_.path, "--chunk-profile=" + path_});
    return Check(command, std::move(args));
  }
  PreflightReport Stage(const std::string& rank, const std::string& partition = "auto") const {
    return With({"--disaggregation-mode=prefill", "--pp-size=2", "--pp-rank=" + rank,
                 "--pp-layer-partition=" + partition},
                config::Command::kWorker);
  }
  static std::string Said(const PreflightReport& report) {
    return report.findings.empty() ? "" : FindingText(report.findings[0]);
  }

  static constexpr StageCost kCost = {.overhead_us = 100, .token_us = 10, .attention_us = 0.1};
  const ModelDirectory model_;
  const std::string path_;
  ChunkProfile profile_;
};

TEST_F(ChunkCostsTest, GivesEveryStageItsCosts) {
  const PreflightReport report = With({"--pp-size=2", "--pp-layer-partition=1,3"});
  ASSERT_TRUE(report.findings.empty()) << Said(report);
  EXPECT_FALSE(report.chunks.keeps_file);
  ASSERT_EQ(report.chunks.stages.size(), 2u);
  EXPECT_DOUBLE_EQ(report.chunks.stages[0].token_us, 5);
  EXPECT_DOUBLE_EQ(report.chunks.stages[1].token_us, 45);
  EXPECT_THAT(report.chunks.source, HasSubstr("learned from 20 plans"));
  EXPECT_THAT(report.chunks.source, HasSubstr("with other layers"));
  EXPECT_EQ(report.chunks.here.dtype, "float32");
}

TEST_F(ChunkCostsTest, LayersAreSharedOutByMeasuredTimes) {
  const PreflightReport up = With({"--pp-size=2", "--pp-layer-partition=auto"});
  ASSERT_TRUE(up.findings.empty()) << Said(up);
  EXPECT_EQ(up.values.pp_layer_partition(), "3,1");
  EXPECT_FALSE(up.chunks.keeps_file) << "its stages are told the split";
  EXPECT_EQ(up.memory->processes[1].layers, (LayerRange{0, 3}));
  for (const char* rank : {"0", "1"}) {
    const PreflightReport stage = Stage(rank);
    ASSERT_TRUE(stage.findings.empty()) << Said(stage);
    EXPECT_EQ(stage.values.pp_layer_partition(), "3,1");
    EXPECT_TRUE(stage.chunks.keeps_file) << "other stages have yet to read it";
  }
  EXPECT_FALSE(Stage("0", "2,2").chunks.keeps_file);
}

TEST_F(ChunkCostsTest, AnotherModelsIsNotUsedAndNotTouched) {
  profile_.on.config_hash ^= 1;
  const PreflightReport report = With({"--pp-size=2"});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_THAT(Said(report), HasSubstr("has other sizes there. It is not used, and left as it is"));
  EXPECT_TRUE(report.chunks.keeps_file);
  EXPECT_FALSE(report.chunks.profile.has_value());
  EXPECT_TRUE(report.chunks.stages.empty());
  EXPECT_THAT(report.chunks.missing, HasSubstr("has none of this chain"));
  EXPECT_FALSE(With({"--pp-size=2", "--pp-layer-partition=auto"}).status().ok());
}

TEST_F(ChunkCostsTest, OfOtherTypesLikewise) {
  const PreflightReport report = With({"--pp-size=2", "--dtype=bfloat16"});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_THAT(Said(report), HasSubstr("--dtype is float32 there and bfloat16 here"));
  EXPECT_TRUE(report.chunks.keeps_file);
  EXPECT_THAT(Said(With({"--pp-size=2", "--dtype=bfloat16", "--pp-layer-partition=auto"})),
              HasSubstr("--dtype is float32"));
}

TEST_F(ChunkCostsTest, OfOtherArithmeticLikewiseWhereThatMakesADifference) {
  profile_.on.cpu_numerics = "auto";
  EXPECT_EQ(Said(With({"--pp-size=2", "--cpu-numerics=exact"})), "") << "float32 weights";
  const std::string narrow = "--dtype=bfloat16";
  profile_.on = Check(config::Command::kUp, {"--model-path=" + model_.path, narrow}).chunks.here;
  EXPECT_EQ(profile_.on.cpu_numerics, "auto");
  EXPECT_EQ(Said(With({"--pp-size=2", narrow})), "");
  const PreflightReport report = With({"--pp-size=2", narrow, "--cpu-numerics=exact"});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_THAT(Said(report), HasSubstr("--cpu-numerics is auto there and exact here"));
  EXPECT_TRUE(report.chunks.keeps_file);
}

TEST_F(ChunkCostsTest, OfAnotherNumberOfStagesIsWrittenAnew) {
  const PreflightReport report = With({"--pp-size=3"});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_THAT(Said(report), HasSubstr("is of a chain of 2, not of --pp-size 3"));
  EXPECT_FALSE(report.chunks.keeps_file);
  EXPECT_TRUE(report.chunks.stages.empty());
  const PreflightReport measured = With({"--pp-size=3", "--pp-layer-partition=auto"});
  EXPECT_FALSE(measured.status().ok());
  EXPECT_THAT(Said(measured), HasSubstr("is of a chain of 2"));
}

TEST_F(ChunkCostsTest, DamagedOnesAreRefused) {
  profile_.stages[1].layers = 3;
  EXPECT_THAT(Said(With({"--pp-size=2"})),
              HasSubstr("\"stages\" have 5 layers together, expected the model's 4"));
  profile_.stages[1] = {.layers = 2, .cost = {.token_us = -1}};
  const PreflightReport report = With({"--pp-size=2"});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Said(report), HasSubstr("\"stages[1].token_us\" is -1"));
  EXPECT_THAT(Said(report), HasSubstr("(set by flag --chunk-profile)"));
  // Later stages don't read it, wherever they are, unless their layers follow from it.
  EXPECT_TRUE(Stage("1", "2,2").status().ok());
  EXPECT_FALSE(Stage("1", "auto").status().ok());
  EXPECT_FALSE(Stage("0", "2,2").status().ok());
}

TEST_F(ChunkCostsTest, TheFirstStartHasNoFile) {
  const auto check = [&](const std::string& path, const std::string& partition) {
    return Check(config::Command::kUp,
                 {"--model-path=" + model_.path, "--pp-size=2", "--chunk-profile=" + path,
                  "--pp-layer-partition=" + partition});
  };
  EXPECT_TRUE(check(model_.path + "/none.json", "").findings.empty());
  EXPECT_THAT(check(model_.path + "/none.json", "").chunks.missing, HasSubstr("has none"));
  EXPECT_THAT(Said(check("/nowhere/costs.json", "")), HasSubstr("no directory '/nowhere'"));
  EXPECT_THAT(Said(check(model_.path + "/none.json", "auto")), HasSubstr("an even split first"));
}

}  // namespace
}  // namespace baton
