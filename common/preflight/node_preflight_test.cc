// The checks of a node, which is its share of a chain (--nnodes).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using model_testing::ModelDirectory;
using preflight_testing::Check;
using preflight_testing::kRoomy;
using preflight_testing::Make;

std::vector<std::string> Node(const ModelDirectory& model, const std::string& rank) {
  return {"--model-path=" + model.path,
          "--disaggregation-mode=prefill",
          "--pp-size=2",
          "--nnodes=2",
          "--node-rank=" + rank,
          "--tp-size=2"};
}

TEST(NodePreflightTest, ANodeHoldsItsRanksMemoryAndSharesItsCores) {
  const ModelDirectory model = Make("node_memory");
  Machine machine = kRoomy;
  machine.cores = 9;
  for (const config::Command command : {config::Command::kWorker, config::Command::kValidate}) {
    const PreflightReport report = Check(command, Node(model, "1"), machine);
    ASSERT_TRUE(report.memory.has_value()) << report.status();
    ASSERT_EQ(report.memory->processes.size(), 2u);
    EXPECT_EQ(report.memory->processes[0].name, "prefill 1.0");
    EXPECT_EQ(report.memory->processes[1].name, "prefill 1.1");
    EXPECT_EQ(report.memory->processes[1].layers, (LayerRange{2, 4}));
    EXPECT_EQ(report.values.threads(), 4);
  }
}

TEST(NodePreflightTest, ANodeOfADecodeServiceSharesItsCoresTooAndIsCheckedAsItsRanks) {
  const ModelDirectory model = Make("decode_node");
  Machine machine = kRoomy;
  machine.cores = 6;
  std::vector<std::string> args = {"--model-path=" + model.path, "--disaggregation-mode=decode",
                                   "--nnodes=2", "--node-rank=0", "--tp-size=4"};
  const PreflightReport report = Check(config::Command::kWorker, args, machine);
  ASSERT_TRUE(report.memory.has_value()) << report.status();
  EXPECT_EQ(report.memory->processes.size(), 2u);
  EXPECT_EQ(report.values.threads(), 3);
  args.back() = "--tp-size=6";  // Two nodes of three, and heads that six do not divide.
  EXPECT_FALSE(Check(config::Command::kWorker, args, machine).status().ok());
}

TEST(NodePreflightTest, ANodeNeedsTheShardsOfItsStagesAlone) {
  const ModelDirectory model = Make("node_shards", {.shards = 8});
  model.Remove("model-00008-of-00008.safetensors");
  model.Remove("tokenizer.json");
  const auto status = [&](std::vector<std::string> args) {
    return Check(config::Command::kWorker, std::move(args)).status();
  };
  EXPECT_TRUE(status(Node(model, "0")).ok()) << status(Node(model, "0"));
  EXPECT_FALSE(status(Node(model, "1")).ok());
  EXPECT_FALSE(status({"--model-path=" + model.path, "--disaggregation-mode=prefill", "--pp-size=2",
                       "--nnodes=1"})
                   .ok());
}

TEST(NodePreflightTest, AFractionSizesThePoolOfTheNodesProcessesTogether) {
  const ModelDirectory model = Make("node_fraction");
  const auto tokens = [&](const std::string& nodes) {
    return Check(config::Command::kWorker,
                 {"--model-path=" + model.path, "--disaggregation-mode=prefill", "--pp-size=2",
                  "--nnodes=" + nodes, "--node-rank=0", "--mem-fraction-static=0.1"})
        .values.kv_cache_tokens();
  };
  EXPECT_GT(tokens("2"), tokens("1"));
  EXPECT_GT(tokens("1"), 0);
}

}  // namespace
}  // namespace baton
