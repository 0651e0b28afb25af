#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "services/baton/launch_plan.h"

namespace baton {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

config::ParsedOptions Parse(std::vector<std::string> args) {
  config::OptionInput input;
  input.args = {"--model-path", "/models/m"};
  input.args.insert(input.args.end(), args.begin(), args.end());
  const auto parsed = config::ParseOptions(config::Command::kUp, input);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

// Free ports are 11000, 11001, ...
absl::StatusOr<LaunchPlan> Plan(std::vector<std::string> args) {
  int next = 11000;
  return PlanLaunch(Parse(std::move(args)), {"--kv-cache-tokens=4096"},
                    {"PATH=/bin", "BATON_PORT=1"}, [&next](const std::string&) { return next++; });
}

const ChildSpec& Child(const LaunchPlan& plan, const std::string& name) {
  for (const ChildSpec& child : plan.children) {
    if (child.name == name) return child;
  }
  ADD_FAILURE() << name;
  return plan.children[0];
}

TEST(UpPlanTest, EveryProcessKnowsItsPlace) {
  const auto plan = Plan({"--pp-size=2", "--decodes=2", "--threads=3", "--page-size=16"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const ChildSpec& child : plan->children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "prefill-0-0", "prefill-0-1", "decode-0", "decode-1"));
  EXPECT_THAT(Child(*plan, "router").arguments,
              ElementsAre("router", "--model-path=/models/m", "--port=30000", "--grpc-port=30001",
                          "--cluster-port=30002"));
  const std::vector<std::string>& stage = Child(*plan, "prefill-0-1").arguments;
  EXPECT_EQ(stage[0], "worker");
  EXPECT_THAT(stage,
              IsSupersetOf({"--disaggregation-mode=prefill", "--router-address=127.0.0.1:30002",
                            "--instance-id=prefill-0-1", "--chain-id=chain-0", "--pp-rank=1",
                            "--pp-size=2", "--grpc-port=0", "--threads=3", "--page-size=16",
                            "--advertise-host=127.0.0.1"}));
  EXPECT_EQ(stage.back(), "--kv-cache-tokens=4096");  // The last of two counts.
  EXPECT_THAT(Child(*plan, "decode-1").environment, ElementsAre("PATH=/bin"));
}

TEST(UpPlanTest, EveryRankOfAStageIsAProcess) {
  const auto plan =
      Plan({"--pp-size=2", "--tp-size=2", "--row-parallel-chunks=4", "--metrics-port=9100"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const ChildSpec& child : plan->children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "prefill-0-0-0", "prefill-0-0-1", "prefill-0-1-0",
                                 "prefill-0-1-1", "decode-0"));
  EXPECT_THAT(Child(*plan, "prefill-0-1-0").arguments,
              IsSupersetOf({"--instance-id=prefill-0-1-0", "--chain-id=chain-0", "--pp-rank=1",
                            "--tp-rank=0", "--tp-size=2", "--row-parallel-chunks=4",
                            "--metrics-port=9102"}));
  const std::vector<std::string>& decode = Child(*plan, "decode-0").arguments;
  const auto last_size = std::find_if(decode.rbegin(), decode.rend(), [](const auto& argument) {
    return argument.starts_with("--tp-size=");
  });
  ASSERT_NE(last_size, decode.rend());
  EXPECT_EQ(*last_size, "--tp-size=1");  // The last of two counts.
}

TEST(UpPlanTest, EveryWorkerIsToldItsGpu) {
  const auto plan =
      Plan({"--executor=torch", "--device=cuda", "--base-gpu-id=1", "--pp-size=2", "--decodes=2"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto device = [&](const std::string& name) {
    std::string last;
    for (const std::string& argument : Child(*plan, name).arguments) {
      if (argument.starts_with("--device=")) last = argument;
    }
    return last;
  };
  EXPECT_EQ(device("router"), "");
  EXPECT_EQ(device("prefill-0-0"), "--device=cuda:1");
  EXPECT_EQ(device("prefill-0-1"), "--device=cuda:2");
  EXPECT_EQ(device("decode-0"), "--device=cuda:3");
  EXPECT_EQ(device("decode-1"), "--device=cuda:4");  // The last of two counts.
}

TEST(UpPlanTest, ColocatedChainsHaveNoDecodeServicesBesideThem) {
  const auto plan = Plan({"--disaggregation-mode=null", "--pp-size=2", "--prefill-chains=2",
                          "--max-running-requests=8", "--target-itl-ms=50"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const ChildSpec& child : plan->children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "colocated-0-0", "colocated-0-1", "colocated-1-0",
                                 "colocated-1-1"));
  EXPECT_THAT(Child(*plan, "colocated-1-1").arguments,
              IsSupersetOf({"--disaggregation-mode=null", "--chain-id=chain-1", "--pp-rank=1",
                            "--max-running-requests=8", "--target-itl-ms=50"}));
  ASSERT_EQ(plan->groups.size(), 2u);
  EXPECT_EQ(plan->groups[1].name, "chain-1");
  // What the router is told says nothing of modes.
  for (const std::string& argument : Child(*plan, "router").arguments) {
    EXPECT_THAT(argument, testing::Not(HasSubstr("disaggregation")));
  }
}

TEST(UpPlanTest, EveryRankOfADecodeServiceIsAProcess) {
  const auto plan = Plan({"--pp-size=1", "--tp-size=2", "--decodes=2", "--decode-tp-size=4"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const ChildSpec& child : plan->children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "prefill-0-0-0", "prefill-0-0-1", "decode-0-0",
                                 "decode-0-1", "decode-0-2", "decode-0-3", "decode-1-0",
                                 "decode-1-1", "decode-1-2", "decode-1-3"));
  EXPECT_THAT(
      Child(*plan, "decode-1-2").arguments,
      IsSupersetOf({"--instance-id=decode-1-2", "--decode-id=1", "--tp-rank=2", "--tp-size=4"}));
}

TEST(UpPlanTest, EveryStageOfADecodeServiceIsAProcess) {
  const auto plan = Plan({"--pp-size=3", "--pp-layer-partition=1,2,1", "--decode-pp-size=2"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const ChildSpec& child : plan->children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "prefill-0-0", "prefill-0-1", "prefill-0-2",
                                 "decode-0-0", "decode-0-1"));
  EXPECT_THAT(
      Child(*plan, "decode-0-1").arguments,
      IsSupersetOf({"--decode-id=0", "--pp-size=2", "--pp-rank=1", "--pp-layer-partition="}));
  const auto uneven = Plan({"--decode-pp-size=2", "--decode-pp-layer-partition=3,1"});
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_THAT(Child(*uneven, "decode-0-1").arguments, Contains("--pp-layer-partition=3,1"));
  EXPECT_THAT(Child(*uneven, "prefill-0-0").arguments,
              Not(Contains(HasSubstr("pp-layer-partition"))));
  const auto both = Plan({"--decode-pp-size=2", "--decode-tp-size=2"});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(Child(*both, "decode-0-1-0").arguments,
              IsSupersetOf({"--pp-rank=1", "--tp-rank=0", "--decode-id=0"}));
}

// A decode service of one stage beside a chain of several is told so, whatever the cluster was.
TEST(UpPlanTest, ADecodeServiceDoesNotInheritTheChainsStages) {
  const auto plan = Plan({"--pp-size=2"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Child(*plan, "decode-0").arguments, Contains("--pp-size=1"));
}

TEST(UpPlanTest, EveryWorkerIsCountedInOneGroup) {
  const auto groups = [](std::vector<std::string> args) {
    std::vector<std::string> texts;
    const auto plan = Plan(std::move(args));
    for (const StartingGroup& group : plan->groups) {
      texts.push_back(group.name + ", " + group.unit);
      for (const std::string& name : group.names) texts.back() += " " + name;
    }
    return texts;
  };
  EXPECT_THAT(groups({"--prefill-chains=2", "--decodes=2"}),
              ElementsAre("chain-0, stages prefill-0-0", "chain-1, stages prefill-1-0",
                          "decode, services decode-0 decode-1"));
  EXPECT_THAT(groups({"--tp-size=2", "--decode-tp-size=2"}),
              ElementsAre("chain-0, ranks prefill-0-0-0 prefill-0-0-1",
                          "decode, ranks decode-0-0 decode-0-1"));
}

TEST(UpPlanTest, MetricsPortsAreFixed) {
  const auto open = Plan({"--port=0", "--grpc-port=0", "--cluster-port=0"});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->router->http_port, 11000);
  EXPECT_EQ(open->router->grpc_port, 11001);
  EXPECT_EQ(open->router->cluster_port, 11002);
  EXPECT_EQ(open->metrics_ports,
            (std::map<std::string, int>{{"prefill-0-0", 11003}, {"decode-0", 11004}}));
  EXPECT_THAT(Child(*open, "decode-0").arguments, Contains("--metrics-port=11004"));

  const auto wanted = Plan({"--metrics-port=9100", "--pp-size=2"});
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(wanted->metrics_ports,
            (std::map<std::string, int>{
                {"prefill-0-0", 9100}, {"prefill-0-1", 9101}, {"decode-0", 9102}}));
}

TEST(UpPlanTest, PortsThatCannotBeAreNamed) {
  EXPECT_THAT(std::string(Plan({"--port=5000", "--grpc-port=5000"}).status().message()),
              HasSubstr("port 5000 is asked for twice"));
  EXPECT_THAT(std::string(Plan({"--metrics-port=65535"}).status().message()),
              HasSubstr("port 65536 does not exist"));
}

TEST(UpPlanTest, WhoListensEverywhereRegistersWhatOthersReach) {
  const auto plan = Plan({"--host=0.0.0.0"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ports[0].host, "0.0.0.0");
  EXPECT_EQ(plan->local_host, "127.0.0.1");
  EXPECT_NE(plan->advertise_host, "0.0.0.0");
  const std::vector<std::string>& decode = Child(*plan, "decode-0").arguments;
  EXPECT_THAT(decode, IsSupersetOf({std::string("--host=0.0.0.0"),
                                    std::string("--router-address=127.0.0.1:30002"),
                                    "--advertise-host=" + plan->advertise_host}));
  const auto told = Plan({"--host=0.0.0.0", "--advertise-host=node-3"});
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->advertise_host, "node-3");
}

TEST(UpPlanTest, WorkersRegisterAtTheClustersHost) {
  const auto plan = Plan({"--host=0.0.0.0", "--cluster-host=127.0.0.1"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Child(*plan, "router").arguments, Contains("--cluster-host=127.0.0.1"));
  EXPECT_THAT(Child(*plan, "decode-0").arguments, Contains("--router-address=127.0.0.1:30002"));
  EXPECT_THAT(std::string(Plan({"--cluster-host=203.0.113.9"}).status().message()),
              HasSubstr("cluster_host: '203.0.113.9'"));
}

TEST(UpPlanTest, AHostOfAnotherMachineIsRefused) {
  const auto plan = Plan({"--host=203.0.113.9"});
  EXPECT_EQ(plan.status().message(), "host: '203.0.113.9' is no address of this machine");
}

// The lock file is tools/cluster/cluster.py's as well.
TEST(UpPlanTest, AFreePortIsOutsideOfWhatTheKernelGivesAndOfWhatOthersChose) {
  setenv("TMPDIR", testing::TempDir().c_str(), 1);  // No other test looks for ports.
  const auto port = FreePort("127.0.0.1");
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_GE(*port, 10'000);
  const std::string path =
      std::filesystem::temp_directory_path() / absl::StrCat("baton-ports-", getuid(), ".lock");
  const int other = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(other, 0) << strerror(errno);
  struct flock bytes = {};
  bytes.l_type = F_WRLCK;
  bytes.l_whence = SEEK_SET;
  bytes.l_start = *port;
  bytes.l_len = 1;
  EXPECT_NE(fcntl(other, F_OFD_SETLK, &bytes), 0) << "not claimed";
  // The other one has all that this one has not.
  bytes.l_start = *port + 1;
  bytes.l_len = 0;
  ASSERT_EQ(fcntl(other, F_OFD_SETLK, &bytes), 0) << strerror(errno);
  bytes.l_start = 0;
  bytes.l_len = *port;
  ASSERT_EQ(fcntl(other, F_OFD_SETLK, &bytes), 0) << strerror(errno);
  const auto again = FreePort("127.0.0.1");
  EXPECT_TRUE(again.status().code() == absl::StatusCode::kUnavailable || *again == *port)
      << again.status();
  close(other);
}

}  // namespace
}  // namespace baton
