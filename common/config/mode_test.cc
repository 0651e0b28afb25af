// Which mode each command has, and what contradicts it.
#include "common/config/mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/config/options.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using ::testing::Contains;
using testing::ExpectRefused;
using testing::Given;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Parse;
using testing::Refusal;
using ::testing::StartsWith;
using v1::OptionSpec;

constexpr Command kAnyWorker = Command::kWorker;

TEST(ModeTest, AWorkerIsColocatedUnlessItSaysOtherwise) {
  const Given rows[] = {{.command = kAnyWorker},
                        {.args = {"--disaggregation-mode=null"}, .command = kAnyWorker},
                        {.environment = {"BATON_DISAGGREGATION_MODE=null"}, .command = kAnyWorker},
                        {.file = "disaggregation_mode: null\n", .command = kAnyWorker}};
  for (const Given& given : rows) {
    const auto parsed = Parse(given);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->role, OptionSpec::COLOCATED);
    EXPECT_EQ(parsed->values.disaggregation_mode(), "null");
    EXPECT_EQ(parsed->values.grpc_port(), 0) << "any free port, as of every worker";
    EXPECT_EQ(parsed->sources.count("max_prefill_requests"), 0u);
    EXPECT_EQ(parsed->sources.count("max_running_requests"), 1u);
  }
}

TEST(ModeTest, AColocatedWorkerHasItsPlaceInAChain) {
  const auto numbered =
      Parse({.args = {"--pp-size=2", "--chain-id=c", "--prefill-index=3"}, .command = kAnyWorker});
  ASSERT_TRUE(numbered.ok()) << numbered.status();
  EXPECT_EQ(numbered->values.pp_rank(), 1);
  EXPECT_EQ(numbered->values.chain_id(), "c-1");
  const auto node =
      Parse({.args = {"--pp-size=4", "--nnodes=2", "--node-rank=1", "--dist-init-addr=h:1"},
             .command = kAnyWorker});
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->values.chain_id(), "h-1");
}

TEST(ModeTest, ServeTakesItsModelWithoutAFlag) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"models/austen"},
                                             {"models/austen", "--port=1"},
                                             {"--port", "1", "models/austen"},
                                             {"--model-path", "models/austen"},
                                             {"--model=models/austen"}}) {
    const auto parsed = Parse({.args = args, .command = Command::kServe, .bare = true});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->role, OptionSpec::UP);
    EXPECT_EQ(parsed->values.model_path(), "models/austen");
    EXPECT_EQ(parsed->values.served_model_name(), "austen");
    EXPECT_TRUE(IsColocated(parsed->values));
    EXPECT_THAT(parsed->notes, IsEmpty());
  }
  const auto up = Parse({.command = Command::kUp});
  ASSERT_TRUE(up.ok());
  EXPECT_FALSE(IsColocated(up->values));
  EXPECT_TRUE(IsColocated(
      Parse({.args = {"--disaggregation-mode=null"}, .command = Command::kUp})->values));
}

TEST(ModeTest, ContradictionsNameBoth) {
  const Refusal rows[] = {
      {{.command = Command::kServe, .bare = true}, "model_path", {"baton serve DIR"}},
      {{.args = {"a"}, .command = Command::kServe}, "model_path", {"'a'", "--model-path"}},
      {{.args = {"a", "b"}, .command = Command::kServe, .bare = true}, "b", {"unexpected"}},
      {{.args = {"-tp", "2"}, .command = Command::kServe}, "-tp", {"two dashes: --tp"}},
      {{.args = {"--disaggregation-mode=prefill"}, .command = Command::kServe},
       "disaggregation_mode",
       {"got prefill", "null", "flag --disaggregation-mode"}},
      {{.args = {"--disaggregation-mode=decode"}, .command = Command::kUp},
       "disaggregation_mode",
       {"got decode", "null"}},
      {{.args = {"--decodes=2"}, .command = Command::kServe},
       "decodes",
       {"got 2", "disaggregation_mode = null", "--prefill-chains", "flag --decodes"}},
      {{.args = {"--disaggregation-mode=null", "--decode-tp-size=2"}, .command = Command::kUp},
       "decode_tp_size",
       {"got 2", "disaggregation_mode = null"}},
      {{.args = {"--disaggregation-mode=null", "--decode-pp-layer-partition=2"},
        .command = Command::kUp},
       "decode_pp_layer_partition",
       {"got 2", "disaggregation_mode = null"}},
      {{.args = {"--disaggregation-mode=null", "--decodes=2"}, .command = Command::kValidate},
       "decodes",
       {"disaggregation_mode = null"}},
      {{.args = {"--decode-id=d"}, .command = kAnyWorker},
       "decode_id",
       {"'d'", "flag --decode-id", "disaggregation_mode = null"}},
      {{.args = {"--decode-index=1"}, .command = kAnyWorker},
       "decode_index",
       {"disaggregation_mode = null"}},
      {{.args = {"--disaggregation-mode=null", "--pp-rank=0", "--decode-id=d"},
        .command = Command::kValidate},
       "decode_id",
       {"disaggregation_mode = null"}},
      {{.args = {"--disaggregation-mode=decode", "--target-itl-ms=50"}, .command = kAnyWorker},
       "target_itl_ms",
       {"'50'", "disaggregation_mode = decode"}},
      {{.args = {"--disaggregation-mode=prefill", "--target-itl-ms=50"}, .command = kAnyWorker},
       "target_itl_ms",
       {"'50'", "disaggregation_mode = prefill"}},
      {{.args = {"--target-itl-ms=50"}, .command = Command::kUp},
       "target_itl_ms",
       {"got 50", "disaggregation_mode = null"}},
      {{.args = {"--max-running-requests=4097"}, .command = kAnyWorker},
       "max_running_requests",
       {"got 4097", "disaggregation_mode = null", "at most 4096"}},
      {{.args = {"--target-itl-ms=-1"}, .command = kAnyWorker}, "target_itl_ms", {"from 0"}},
      {{.args = {"--decode-max-wait-ms=5"}, .command = Command::kUp},
       "decode_max_wait_ms",
       {"got 5", "disaggregation_mode = null"}},
      {{.args = {"--disaggregation-mode=decode", "--decode-max-wait-ms=5"}, .command = kAnyWorker},
       "decode_max_wait_ms",
       {"'5'", "disaggregation_mode = decode"}},
      {{.args = {"--target-itl-ms=50", "--decode-max-wait-ms=51"}, .command = kAnyWorker},
       "decode_max_wait_ms",
       {"got 51", "target_itl_ms = 50", "flag --decode-max-wait-ms"}},
      {{.args = {"--pp-max-micro-batch-size=9", "--max-running-requests=8"}, .command = kAnyWorker},
       "pp_max_micro_batch_size",
       {"got 9", "max_running_requests = 8"}},
      {{.args = {"--schedule-conservativeness=-1"}, .command = kAnyWorker},
       "schedule_conservativeness",
       {"'-1'", "from 0 to 2"}},
      {{.args = {"--schedule-conservativeness=2.5"}, .command = kAnyWorker},
       "schedule_conservativeness",
       {"'2.5'", "from 0 to 2"}},
      {{.args = {"--pp-async-batch-depth=193"}, .command = kAnyWorker},
       "pp_async_batch_depth",
       {"193", "to 192"}},
      {{.args = {"--disaggregation-mode=decode"}, .command = Command::kSimulate, .bare = true},
       "disaggregation_mode",
       {"got decode", "simulate runs a cluster"}},
      {{.args = {"--disaggregation-mode=null", "--decodes=2", "--timed-profile=p"},
        .command = Command::kSimulate,
        .bare = true},
       "decodes",
       {"got 2", "disaggregation_mode = null"}},
  };
  for (const Refusal& row : rows) ExpectRefused(row);
}

// Processes of both modes may share a file.
TEST(ModeTest, AFileOfBothModesContradictsNothing) {
  Given given{.file = "decode_id: d\ntarget_itl_ms: 50\nmax_prefill_requests: 4\n",
              .command = kAnyWorker};
  const auto colocated = Parse(given);
  ASSERT_TRUE(colocated.ok()) << colocated.status();
  EXPECT_EQ(colocated->values.target_itl_ms(), 50);
  given.args = {"--disaggregation-mode=decode"};
  const auto decode = Parse(given);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->values.target_itl_ms(), 0);
  EXPECT_EQ(decode->values.decode_id(), "d");
}

TEST(ModeTest, AMicroBatchBoundsTheRequestsOfAColocatedChain) {
  Given given{.args = {"--pp-size=2", "--pp-max-micro-batch-size=5"}, .command = kAnyWorker};
  auto worker = Parse(given);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->values.max_running_requests(), 10);
  given.args.push_back("--pp-async-batch-depth=1");
  worker = Parse(given);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->values.max_running_requests(), 15);
  EXPECT_EQ(SourceText(worker->sources.at("max_running_requests")),
            "derived from --pp-max-micro-batch-size");
  given.args.push_back("--max-running-requests=7");
  worker = Parse(given);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->values.max_running_requests(), 7);
}

TEST(ModeTest, WhatIsForColocatedChainsIsNothingForOthers) {
  for (const char* flag : {"--pp-max-micro-batch-size=8", "--schedule-conservativeness=0.3"}) {
    for (const char* mode : {"prefill", "decode"}) {
      const auto worker = Parse(
          {.args = {absl::StrCat("--disaggregation-mode=", mode), flag}, .command = kAnyWorker});
      ASSERT_TRUE(worker.ok()) << worker.status();
      EXPECT_THAT(worker->notes, Contains(HasSubstr(absl::StrCat("nothing for ", mode))));
    }
    const auto cluster = Parse({.args = {flag}, .command = Command::kUp});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    EXPECT_THAT(cluster->notes, Contains(HasSubstr("nothing for chains that do not decode")));
  }
}

TEST(ModeTest, SimulatesEitherMode) {
  const auto file = Parse({.file = "timed_profile: p\ndisaggregation_mode: prefill\n",
                           .command = Command::kSimulate,
                           .bare = true});
  EXPECT_TRUE(file.ok()) << file.status();
  const auto colocated = Parse({.args = {"--timed-profile=p", "--disaggregation-mode=null",
                                         "--target-itl-ms=50", "--max-running-requests=8"},
                                .command = Command::kSimulate,
                                .bare = true});
  ASSERT_TRUE(colocated.ok()) << colocated.status();
  EXPECT_TRUE(IsColocated(colocated->values));
}

TEST(ModeTest, ABoundOfTheOtherModeIsExplained) {
  const auto worker = Parse({.args = {"--max-prefill-requests=4"}, .command = kAnyWorker});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_THAT(worker->notes, Contains(HasSubstr("nothing for colocated; it bounds what a prefill "
                                                "chain reads; a colocated chain and a decode "
                                                "service have --max-running-requests")));
  const auto serve = Parse({.args = {"--max-prefill-requests=4"}, .command = Command::kServe});
  ASSERT_TRUE(serve.ok()) << serve.status();
  EXPECT_THAT(serve->notes,
              Contains(StartsWith("--max-prefill-requests: nothing for colocated chains")));
}

TEST(ModeTest, ValidateIsAskedAboutAClusterOrAPlace) {
  const auto role = [](std::vector<std::string> args) {
    const auto parsed = Parse({.args = std::move(args), .command = Command::kValidate});
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return CheckedRole(*parsed);
  };
  EXPECT_EQ(role({}), OptionSpec::UP);
  EXPECT_EQ(role({"--disaggregation-mode=null"}), OptionSpec::UP);
  EXPECT_EQ(role({"--disaggregation-mode=null", "--pp-size=2"}), OptionSpec::UP);
  EXPECT_EQ(role({"--disaggregation-mode=null", "--pp-size=2", "--pp-rank=1"}),
            OptionSpec::COLOCATED);
  EXPECT_EQ(role({"--disaggregation-mode=null", "--nnodes=1"}), OptionSpec::COLOCATED);
  EXPECT_EQ(role({"--disaggregation-mode=decode"}), OptionSpec::DECODE);
}

}  // namespace
}  // namespace baton::config
