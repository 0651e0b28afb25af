// What the checks say of GPUs: whose they are and what fits into their memory. The GPUs are made
// up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using config::Command;
using preflight_testing::Check;
using preflight_testing::kGib;
using preflight_testing::kRoomy;
using preflight_testing::Make;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;

class DevicePreflightTest : public testing::Test {
 protected:
  // A machine whose GPUs have so much free; none: without a driver.
  PreflightReport With(Command command, std::vector<std::string> args,
                       const std::optional<std::vector<int64_t>>& free) {
    Machine machine = kRoomy;
    machine.read_gpus = [free] {
      Gpus gpus;
      gpus.source = "this machine";
      gpus.known = free.has_value();
      for (const int64_t bytes : free.value_or(std::vector<int64_t>{})) {
        gpus.visible.push_back({"GPU-0", bytes});
      }
      return gpus;
    };
    args.insert(args.end(), {"--model-path=" + model_.path, "--executor=torch"});
    return Check(command, std::move(args), machine);
  }

  const model_testing::ModelDirectory model_ = Make("device");
};

TEST_F(DevicePreflightTest, EveryWorkerHasAGpuAndItsMemoryIsPlanned) {
  const PreflightReport report =
      With(Command::kUp, {"--device=cuda", "--pp-size=2"}, {{4 * kGib, 5 * kGib, 6 * kGib}});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_THAT(report.devices, ElementsAre("cuda:0", "cuda:1", "cuda:2"));
  ASSERT_EQ(report.device_memory.size(), 3u);
  const DeviceMemory& decode = report.device_memory[2];
  EXPECT_EQ(decode.available, 6 * kGib);
  EXPECT_GT(decode.weights, report.device_memory[0].weights) << "it has all layers";
  EXPECT_EQ(decode.kv, report.device_memory[0].kv + report.device_memory[1].kv);
  EXPECT_EQ(report.memory->weights(), 0) << "none are in the host's memory";
}

TEST_F(DevicePreflightTest, OneGpuForAllHoldsThemTogether) {
  const PreflightReport report =
      With(Command::kUp, {"--device=cuda:1", "--pp-size=2"}, {{kGib, 8 * kGib}});
  ASSERT_EQ(report.device_memory.size(), 1u) << report.status();
  EXPECT_EQ(report.device_memory[0].device, "cuda:1");
  EXPECT_EQ(report.device_memory[0].workers, 3);
  EXPECT_EQ(report.device_memory[0].available, 8 * kGib);
}

TEST_F(DevicePreflightTest, RanksAndChainsAreCountedAsTheyAreStarted) {
  const PreflightReport report = With(
      Command::kUp,
      {"--device=cuda", "--prefill-chains=2", "--pp-size=2", "--tp-size=2", "--decode-tp-size=2"},
      std::vector<int64_t>(10, kGib));
  ASSERT_EQ(report.device_memory.size(), 10u) << report.status();
  for (const int chain : {0, 4}) {
    // Rank 0 of the last stage draws, in the host's memory; on their GPUs ranks are alike.
    EXPECT_EQ(report.device_memory[chain].total(), report.device_memory[chain + 1].total());
    EXPECT_EQ(report.device_memory[chain + 2].weights, report.device_memory[chain + 3].weights);
  }
  EXPECT_EQ(report.device_memory[0].weights, report.device_memory[4].weights);
  EXPECT_EQ(report.device_memory[8].weights, report.device_memory[9].weights);
}

TEST_F(DevicePreflightTest, AWorkerAloneTakesTheFirst) {
  const PreflightReport report = With(Command::kWorker,
                                      {"--disaggregation-mode=prefill", "--device=cuda",
                                       "--base-gpu-id=1", "--pp-size=2", "--pp-rank=1"},
                                      {{4 * kGib, 4 * kGib}});
  EXPECT_TRUE(report.status().ok()) << report.status();
  EXPECT_EQ(report.values.device(), "cuda:1");
}

TEST_F(DevicePreflightTest, TooFewAreRefusedWithTheNumbers) {
  const PreflightReport report =
      With(Command::kUp, {"--device=cuda", "--pp-size=4"}, {{kGib, kGib}});
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].option, "device");
  EXPECT_THAT(report.findings[0].message,
              HasSubstr("5 workers GPUs 0 to 4; this machine has 2 GPUs"));
  EXPECT_THAT(report.findings[0].message, HasSubstr("(set by flag --device)"));
}

TEST_F(DevicePreflightTest, AGpuThatIsTooSmallIsNamedWithWhatFits) {
  const PreflightReport report =
      With(Command::kUp, {"--device=cuda", "--kv-cache-tokens=1000000"}, {{4 * kGib, 1100 * kMib}});
  ASSERT_EQ(report.findings.size(), 1u) << report.status();
  EXPECT_EQ(report.findings[0].severity, Finding::Severity::kShortage);
  EXPECT_EQ(report.findings[0].option, "kv_cache_tokens");
  EXPECT_THAT(report.findings[0].message, HasSubstr("cuda:1 needs"));
  EXPECT_THAT(report.findings[0].message,
              HasSubstr("more than the 1.1 GiB that its driver leaves"));
  EXPECT_THAT(report.findings[0].message, HasSubstr("the largest --kv-cache-tokens that fits is "));
  const PreflightReport none = With(Command::kUp, {"--device=cuda"}, {{kGib, 100 * kMib}});
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no --kv-cache-tokens fits"));
  EXPECT_TRUE(With(Command::kUp, {"--device=cuda", "--memory-check=off"}, {{kGib, 100 * kMib}})
                  .status()
                  .ok());
}

TEST_F(DevicePreflightTest, TheFractionIsOfTheTightestGpus) {
  const auto tokens = [&](std::vector<int64_t> free, const std::string& fraction) {
    const PreflightReport report =
        With(Command::kUp, {"--device=cuda", "--mem-fraction-static=" + fraction}, free);
    EXPECT_TRUE(report.status().ok()) << report.status();
    for (const DeviceMemory& device : report.device_memory) {
      EXPECT_LE(device.weights + device.kv, device.available * std::stod(fraction));
    }
    return report.values.kv_cache_tokens();
  };
  const int64_t half = tokens({8 * kGib, 4 * kGib}, "0.5");
  EXPECT_EQ(half, tokens({4 * kGib, 4 * kGib}, "0.5"));
  EXPECT_LT(half, tokens({8 * kGib, 8 * kGib}, "0.5"));
}

TEST_F(DevicePreflightTest, GpusThatAreNotHereArePlannedByWhatIsSaid) {
  const PreflightReport report =
      With(Command::kValidate,
           {"--device=cuda", "--device-memory=4096", "--mem-fraction-static=0.5"}, std::nullopt);
  EXPECT_TRUE(report.status().ok()) << report.status();
  ASSERT_EQ(report.device_memory.size(), 2u);
  EXPECT_EQ(report.device_memory[0].available, 4 * kGib);
  EXPECT_GT(report.device_memory[1].weights + report.device_memory[1].kv, 2 * kGib - 2 * kMib);
  const PreflightReport unsaid =
      With(Command::kValidate, {"--device=cuda", "--mem-fraction-static=0.5"}, std::nullopt);
  EXPECT_THAT(std::string(unsaid.status().message()), HasSubstr("--device-memory says it"));
}

TEST_F(DevicePreflightTest, ChildrenAreNotDealtOutAgain) {
  const auto parsed =
      config::ParseOptions(Command::kUp, {{"--model-path=" + model_.path, "--executor=torch",
                                           "--device=cuda", "--base-gpu-id=1", "--gpu-id-step=2"},
                                          {},
                                          nullptr});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const config::ParsedOptions planned = PlannedOptions(*parsed, Preflight(*parsed, kRoomy));
  for (const std::string& argument : config::ChildArguments(planned, v1::OptionSpec::DECODE)) {
    EXPECT_THAT(argument, testing::Not(HasSubstr("gpu-id")));
  }
}

}  // namespace
}  // namespace baton
