#include "common/config/device_deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using ::testing::ElementsAre;
using testing::Given;
using ::testing::HasSubstr;
using testing::Parse;

absl::StatusOr<std::vector<std::string>> Deal(Given given, std::optional<int64_t> visible) {
  given.args.insert(given.args.begin(), "--executor=torch");
  const auto parsed = Parse(given);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return DealDevices(parsed->values, CheckedRole(*parsed), {visible, "CUDA_VISIBLE_DEVICES=4,5"});
}

Given Up(std::vector<std::string> args) {
  return {.args = std::move(args), .command = Command::kUp};
}

TEST(DeviceDealTest, EveryWorkerOfUpHasAGpuOfItsOwn) {
  // Two chains of two stages of two ranks, and a decode service of two.
  EXPECT_THAT(*Deal(Up({"--device=cuda", "--prefill-chains=2", "--pp-size=2", "--tp-size=2",
                        "--decode-tp-size=2"}),
                    10),
              ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6",
                          "cuda:7", "cuda:8", "cuda:9"));
  EXPECT_THAT(*Deal({.args = {"--device=cuda", "--pp-size=2"}, .command = Command::kServe}, 2),
              ElementsAre("cuda:0", "cuda:1"))
      << "a colocated chain has no decode service beside it";
}

TEST(DeviceDealTest, BaseAndStepAreSglangs) {
  EXPECT_THAT(*Deal(Up({"--device=cuda", "--base-gpu-id=1", "--gpu-id-step=3", "--pp-size=2"}), 8),
              ElementsAre("cuda:1", "cuda:4", "cuda:7"));
}

TEST(DeviceDealTest, ANodeDealsOutItsOwnPlacesAndAWorkerAloneTakesTheFirst) {
  const std::vector<std::string> chain = {"--disaggregation-mode=prefill", "--device=cuda",
                                          "--pp-size=2", "--tp-size=2"};
  Given node{.args = chain, .command = Command::kWorker};
  node.args.insert(node.args.end(), {"--nnodes=2", "--node-rank=1"});
  EXPECT_THAT(*Deal(node, 2), ElementsAre("cuda:0", "cuda:1"));
  Given worker{.args = chain, .command = Command::kWorker};
  worker.args.insert(worker.args.end(), {"--pp-rank=1", "--tp-rank=1", "--base-gpu-id=2"});
  EXPECT_THAT(*Deal(worker, 3), ElementsAre("cuda:2"));
}

TEST(DeviceDealTest, ANumberedGpuAndTheCpuAreSharedByAll) {
  EXPECT_THAT(*Deal(Up({"--device=cuda:1"}), 2), ElementsAre("cuda:1", "cuda:1"));
  EXPECT_THAT(*Deal(Up({}), 0), ElementsAre("cpu", "cpu"));
}

TEST(DeviceDealTest, WhatNobodyCanCountIsDealtAllTheSame) {
  EXPECT_THAT(*Deal(Up({"--device=cuda"}), std::nullopt), ElementsAre("cuda:0", "cuda:1"));
}

TEST(DeviceDealTest, TooFewAreRefusedWithTheNumbers) {
  struct Row {
    std::vector<std::string> args;
    int64_t visible;
    std::string option;
    std::string message;
  };
  const Row rows[] = {
      {{"--device=cuda", "--pp-size=4"},
       2,
       "device",
       "got cuda, which gives 5 workers GPUs 0 to 4; CUDA_VISIBLE_DEVICES=4,5 has 2 GPUs. cuda:N "
       "is "
       "one GPU that all workers share"},
      {{"--device=cuda", "--base-gpu-id=1", "--gpu-id-step=2"},
       3,
       "device",
       "2 workers GPUs 1 to 3 in steps of 2; CUDA_VISIBLE_DEVICES=4,5 has 3 GPUs"},
      {{"--device=cuda"}, 0, "device", "GPUs 0 to 1; CUDA_VISIBLE_DEVICES=4,5 has no GPUs"},
      {{"--device=cuda:1"}, 1, "device", "got cuda:1; CUDA_VISIBLE_DEVICES=4,5 has 1 GPU"},
      {{"--device=cuda:0", "--tp-size=2"}, 8, "tp_size", "NCCL, which takes a GPU for each"},
      {{"--device=cuda:0", "--decode-tp-size=2"}, 8, "decode_tp_size", "cuda:0 is one for all"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.message);
    const auto dealt = Deal(Up(row.args), row.visible);
    EXPECT_EQ(FieldOf(dealt.status()), row.option) << dealt.status();
    EXPECT_THAT(std::string(dealt.status().message()), HasSubstr(row.message));
  }
}

TEST(DeviceDealTest, ANodeWhoseRanksAreOfDifferentStagesMayShareAGpu) {
  const std::vector<std::string> args = {"--disaggregation-mode=prefill", "--device=cuda:0",
                                         "--nnodes=1", "--node-rank=0"};
  Given stages{.args = args, .command = Command::kWorker};
  stages.args.push_back("--pp-size=2");
  EXPECT_THAT(*Deal(stages, 1), ElementsAre("cuda:0", "cuda:0"));
  Given ranks{.args = args, .command = Command::kWorker};
  ranks.args.push_back("--tp-size=2");
  EXPECT_EQ(FieldOf(Deal(ranks, 1).status()), "tp_size");
}

}  // namespace
}  // namespace baton::config
