#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/baton/launch_plan.h"
#include "services/baton/launch_text.h"

namespace baton {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

config::ParsedOptions Parse(std::vector<std::string> args) {
  config::OptionInput input;
  input.args = {"--model-path=/models/m", "--disaggregation-mode=prefill", "--pp-size=2",
                "--router-address=10.0.0.1:30002"};
  input.args.insert(input.args.end(), args.begin(), args.end());
  const auto parsed = config::ParseOptions(config::Command::kWorker, input);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

// Free ports are 11000, 11001, ...
absl::StatusOr<LaunchPlan> Plan(std::vector<std::string> args) {
  int next = 11000;
  return PlanLaunch(Parse(std::move(args)), {"--kv-cache-tokens=4096"},
                    {"PATH=/bin", "BATON_NNODES=2"},
                    [&next](const std::string&) { return next++; });
}

TEST(NodePlanTest, EveryRankOfTheNodeIsAWorkerThatKnowsItsPlace) {
  const auto plan = Plan({"--tp-size=2", "--nnodes=2", "--node-rank=1", "--page-size=16",
                          "--dist-init-addr=127.0.0.1:25000"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->groups[0].names,
              ElementsAre("prefill-127.0.0.1-25000-1-0", "prefill-127.0.0.1-25000-1-1"));
  EXPECT_EQ(plan->groups[0].name, "127.0.0.1-25000");
  ASSERT_EQ(plan->children.size(), 2u);
  const ChildSpec& child = plan->children[1];
  EXPECT_EQ(child.name, plan->groups[0].names[1]);
  EXPECT_EQ(child.arguments[0], "worker");
  EXPECT_THAT(child.arguments,
              IsSupersetOf({"--disaggregation-mode=prefill", "--pp-size=2", "--tp-size=2",
                            "--pp-rank=1", "--tp-rank=1", "--chain-id=127.0.0.1-25000",
                            "--instance-id=prefill-127.0.0.1-25000-1-1", "--grpc-port=0",
                            "--metrics-port=11001", "--page-size=16", "--host=127.0.0.1",
                            "--router-address=10.0.0.1:30002"}));
  EXPECT_EQ(child.arguments.back(), "--kv-cache-tokens=4096");
  // What a child is told must not make a node of it again.
  EXPECT_THAT(child.arguments, Each(Not(StartsWith("--nnodes"))));
  EXPECT_THAT(child.arguments, Each(Not(StartsWith("--node-rank"))));
  EXPECT_THAT(child.arguments, Each(Not(StartsWith("--dist-init-addr"))));
  EXPECT_THAT(child.environment, ElementsAre("PATH=/bin"));
}

TEST(NodePlanTest, ANodeOfAColocatedChain) {
  const auto plan = Plan({"--disaggregation-mode=null", "--nnodes=1", "--chain-id=c"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->groups[0].names, ElementsAre("colocated-c-0", "colocated-c-1"));
  EXPECT_THAT(plan->children[1].arguments,
              IsSupersetOf({"--disaggregation-mode=null", "--chain-id=c", "--pp-rank=1"}));
  EXPECT_EQ(NodeText(Parse({"--disaggregation-mode=null", "--nnodes=1", "--chain-id=c"}).values),
            "node 0 of 1: stage 0 to stage 1 of c, colocated, 2 stages");
}

// And its arguments are a worker's by the rules for workers.
TEST(NodePlanTest, AChildsArgumentsAreThoseOfOneWorker) {
  const auto plan = Plan({"--tp-size=2", "--nnodes=1", "--dist-init-addr=127.0.0.1:25000"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->children.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    std::vector<std::string> args = plan->children[i].arguments;
    args.erase(args.begin());
    const auto worker = config::ParseOptions(config::Command::kWorker, {args, {}, nullptr});
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_FALSE(config::IsNode(worker->values));
    EXPECT_THAT(config::PlacesHere(worker->values), ElementsAre(plan->places[i]));
  }
}

TEST(NodePlanTest, EveryWorkerIsToldItsGpu) {
  const auto plan = Plan({"--tp-size=2", "--nnodes=1", "--executor=torch", "--device=cuda",
                          "--gpu-id-step=2", "--dist-init-addr=127.0.0.1:25000"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (size_t i = 0; i < 4; ++i) {
    std::vector<std::string> args = plan->children[i].arguments;
    EXPECT_THAT(args, Contains(absl::StrCat("--device=cuda:", 2 * i)));
  }
}

TEST(NodePlanTest, ANodeOfADecodeServiceRunsItsRanks) {
  config::OptionInput input;
  input.args = {"--model-path=/models/m",
                "--disaggregation-mode=decode",
                "--tp-size=4",
                "--nnodes=2",
                "--node-rank=1",
                "--dist-init-addr=127.0.0.1:25001",
                "--metrics-port=9100",
                "--max-running-requests=8"};
  const auto parsed = config::ParseOptions(config::Command::kWorker, input);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  int next = 11000;
  const auto plan = PlanLaunch(*parsed, {}, {}, [&next](const std::string&) { return next++; });
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->groups[0].names,
              ElementsAre("decode-127.0.0.1-25001-2", "decode-127.0.0.1-25001-3"));
  EXPECT_EQ(plan->groups[0].unit, "ranks of this node");
  EXPECT_EQ(NodeText(parsed->values),
            "node 1 of 2: rank 2 to rank 3 of decode service 127.0.0.1-25001, 4 ranks");
  for (size_t i = 0; i < 2; ++i) {
    std::vector<std::string> args = plan->children[i].arguments;
    EXPECT_THAT(args, IsSupersetOf({"--disaggregation-mode=decode", "--tp-size=4",
                                    "--decode-id=127.0.0.1-25001", "--max-running-requests=8"}));
    args.erase(args.begin());
    const auto worker = config::ParseOptions(config::Command::kWorker, {args, {}, nullptr});
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_FALSE(config::IsNode(worker->values));
    EXPECT_EQ(worker->role, v1::OptionSpec::DECODE);
    EXPECT_THAT(config::PlacesHere(worker->values), ElementsAre(plan->places[i]));
    EXPECT_EQ(worker->values.metrics_port(), 9100 + static_cast<int64_t>(i));
  }
  EXPECT_THAT(NodeReadyText(parsed->values, *plan, 1), Not(HasSubstr("stands")));
}

TEST(NodePlanTest, NamesAndPortsThatAreGivenAreTheFirstWorkers) {
  const auto plan = Plan({"--nnodes=1", "--instance-id=rack-3", "--metrics-port=9100",
                          "--grpc-port=9200", "--chain-id=c"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->groups[0].names, ElementsAre("rack-3-0", "rack-3-1"));
  EXPECT_EQ(plan->metrics_ports,
            (std::map<std::string, int>{{"rack-3-0", 9100}, {"rack-3-1", 9101}}));
  EXPECT_THAT(plan->children[1].arguments,
              IsSupersetOf({"--grpc-port=9201", "--metrics-port=9101", "--chain-id=c"}));
  EXPECT_THAT(
      std::string(
          Plan({"--nnodes=1", "--metrics-port=9100", "--grpc-port=9101"}).status().message()),
      HasSubstr("port 9101 is asked for twice"));
}

TEST(NodePlanTest, ListensWhereItIsToldOrOnTheWayToTheOthers) {
  const auto host = [](std::vector<std::string> args) {
    args.push_back("--nnodes=1");
    const auto plan = Plan(std::move(args));
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::string last;
    for (const std::string& argument : plan->children[0].arguments) {
      if (argument.starts_with("--host=")) last = argument.substr(std::string("--host=").size());
    }
    return last;
  };
  EXPECT_EQ(host({}), "127.0.0.1");
  EXPECT_EQ(host({"--dist-init-addr=[::1]:25000"}), "::1");
  EXPECT_EQ(host({"--dist-init-addr=[::1]:25000", "--host=127.0.0.2"}), "127.0.0.2");
  const auto nowhere = Plan({"--nnodes=1", "--dist-init-addr=no.such.host.invalid:1"});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nowhere.status().message()),
              HasSubstr("dist_init_addr: no route from :: to no.such.host.invalid:1"));
}

TEST(NodePlanTest, SaysWhatItIs) {
  const auto text = [](std::vector<std::string> args) {
    return NodeText(Parse(std::move(args)).values);
  };
  EXPECT_EQ(text({"--nnodes=2", "--node-rank=1", "--tp-size=2", "--chain-id=c"}),
            "node 1 of 2: stage 1 rank 0 to stage 1 rank 1 of c, 2 stages of 2 ranks");
  EXPECT_EQ(text({"--nnodes=1"}), "node 0 of 1: stage 0 to stage 1 of chain-0, 2 stages");
  EXPECT_EQ(text({"--nnodes=2", "--node-rank=0"}), "node 0 of 2: stage 0 of chain-0, 2 stages");

  const config::ParsedOptions options = Parse({"--nnodes=2", "--node-rank=1", "--chain-id=c"});
  LaunchPlan plan;
  plan.advertise_host = "::1";
  plan.places = {{1, 0}};
  plan.children = {{"prefill-c-1", {}, {}}};
  plan.metrics_ports = {{"prefill-c-1", 9100}};
  EXPECT_EQ(NodeReadyText(options.values, plan, 1.25),
            "node ready: node 1 of 2: stage 1 of c, 2 stages, after 1.2 s\n"
            "\n"
            "  process      stage  rank  metrics\n"
            "  prefill-c-1      1     0  [::1]:9100\n");
  plan.places = {{0, 0}};
  EXPECT_THAT(NodeReadyText(options.values, plan, 1.25),
              HasSubstr("2 stages, after 1.2 s: the chain stands\n"));
}

}  // namespace
}  // namespace baton
