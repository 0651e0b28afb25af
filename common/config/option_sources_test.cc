// Where an option's value comes from, and what of it goes to children and to the screen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/config/options.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using testing::Given;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Parse;

TEST(OptionSourcesTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  struct Row {
    Given given;
    int64_t port;
    std::string source;
  };
  const std::vector<std::string> variable = {"PATH=/bin", "BATON_PORT=2"};
  const Row rows[] = {
      {{}, 30000, "default"},
      {{.file = "host: ::1\nport: 3\n"}, 3, "conf.yaml:2"},
      {{.environment = variable, .file = "port: 3\n"}, 2, "variable BATON_PORT"},
      {{.args = {"--port", "1"}, .environment = variable, .file = "port: 3\n"}, 1, "flag --port"},
      {{.args = {"--port=1", "--port=4"}}, 4, "flag --port"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.source);
    const auto parsed = Parse(row.given);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->values.port(), row.port);
    EXPECT_EQ(SourceText(parsed->sources.at("port")), row.source);
  }
}

TEST(OptionSourcesTest, TheEnvironmentMayNameTheFile) {
  OptionInput input{{}, {"BATON_CONFIG=a.yaml"}, [](const std::string& path) {
                      EXPECT_EQ(path, "a.yaml");
                      return absl::StatusOr<std::string>("model_path: /m\nport: 7\n");
                    }};
  const auto parsed = ParseOptions(Command::kRouter, input);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.port(), 7);
}

// Another server's variable, for users who migrate.
TEST(OptionSourcesTest, SglangsVariableGivesWayToOurs) {
  const std::string theirs = "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR";
  const std::string ours = "BATON_DYNAMIC_CHUNKING_SMOOTH_FACTOR";
  struct Row {
    std::vector<std::string> args, environment;
    std::string factor;
    std::string source;
  };
  const Row rows[] = {
      {{}, {}, "0.75", "default"},
      {{}, {theirs + "=0.6"}, "0.6", "variable " + theirs},
      {{}, {theirs + "=0.6", ours + "=0.7"}, "0.7", "variable " + ours},
      {{}, {ours + "=0.7", theirs + "=0.6"}, "0.7", "variable " + ours},
      {{"--dynamic-chunking-smooth-factor=0.8"},
       {theirs + "=0.6"},
       "0.8",
       "flag --dynamic-chunking-smooth-factor"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.source);
    std::vector<std::string> args = row.args;
    args.emplace_back("--disaggregation-mode=prefill");
    const auto parsed = Parse(
        {.args = std::move(args), .environment = row.environment, .command = Command::kWorker});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->values.dynamic_chunking_smooth_factor(), row.factor);
    EXPECT_EQ(SourceText(parsed->sources.at("dynamic_chunking_smooth_factor")), row.source);
  }
}

TEST(OptionSourcesTest, VllmsVariablesCutRows) {
  const auto parsed = Parse(
      {.args = {"--disaggregation-mode=prefill"},
       .environment = {"VLLM_ROW_PARALLEL_CHUNKS=8", "VLLM_ROW_PARALLEL_CHUNK_THRESHOLD=4096"},
       .command = Command::kWorker});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.row_parallel_chunks(), 8);
  EXPECT_EQ(parsed->values.row_parallel_chunk_threshold(), 4096);
}

TEST(OptionSourcesTest, SglangsLayerPartitionAndVllmsKeyAreRead) {
  const auto worker = Parse({.args = {"--disaggregation-mode=prefill", "--pp-size=3"},
                             .environment = {"SGLANG_PP_LAYER_PARTITION=3,3,4"},
                             .command = Command::kWorker});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->values.pp_layer_partition(), "3,3,4");
  EXPECT_THAT(worker->notes, ::testing::IsEmpty());
  // It may be set for all processes of a machine.
  const auto decode = Parse({.args = {"--disaggregation-mode=decode"},
                             .environment = {"SGLANG_PP_LAYER_PARTITION=3,3,4"},
                             .command = Command::kWorker});
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->values.pp_layer_partition(), "");
  EXPECT_FALSE(Parse({.args = {"--disaggregation-mode=decode", "--pp-layer-partition=3,3,4"},
                      .command = Command::kWorker})
                   .ok());
  const auto router = Parse({.environment = {"VLLM_API_KEY=hunter2"}});
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(router->values.api_key(), "hunter2");
}

TEST(OptionSourcesTest, NamesTheVariablesOfOthersThatItDoesNotRead) {
  const std::vector<std::string> environment = {"VLLM_USE_V1=1",
                                                "SGLANG_PP_COMM_OVERLAP=1",
                                                "SGL_X=1",
                                                "PATH=/bin",
                                                "VLLM_ROW_PARALLEL_CHUNKS=2",
                                                "VLLM_SERVICE_HOST=10.0.0.1",
                                                "VLLM_PORT=tcp://10.0.0.1:80",
                                                "VLLM_PORT_80_TCP_PORT=80"};
  for (const Command command : {Command::kRouter, Command::kUp, Command::kValidate}) {
    const auto parsed = Parse({.environment = environment, .command = command});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(parsed->notes,
                ::testing::ElementsAre(
                    "set and not read by Baton: SGLANG_PP_COMM_OVERLAP, SGL_X, VLLM_USE_V1"));
    EXPECT_THAT(ChildEnvironment(*parsed, v1::OptionSpec::PREFILL, environment),
                ::testing::ElementsAre("PATH=/bin"));
  }
}

TEST(OptionSourcesTest, ChildrenInheritWhatWasSet) {
  const auto up = Parse({.args = {"--page-size=32", "--config=conf.yaml"},
                         .environment = {"BATON_API_KEY=key", "BATON_GRPC_PORT=9"},
                         .file = "log_level: debug\ndecodes: 2\n",
                         .command = Command::kUp});
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_THAT(ChildArguments(*up, v1::OptionSpec::DECODE),
              ::testing::UnorderedElementsAre("--model-path=/models/tiny", "--page-size=32",
                                              "--log-level=debug", "--grpc-port=9"));
  const std::vector<std::string> environment = {"HOME=/", "BATON_GRPC_PORT=9"};
  EXPECT_THAT(ChildEnvironment(*up, v1::OptionSpec::ROUTER, environment),
              ::testing::ElementsAre("HOME=/", "BATON_API_KEY=key"));
  EXPECT_THAT(ChildEnvironment(*up, v1::OptionSpec::DECODE, environment),
              ::testing::ElementsAre("HOME=/"));
}

TEST(OptionSourcesTest, SecretsAreNeverShown) {
  const auto parsed = Parse({.environment = {"BATON_API_KEY=hunter2"}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->values.api_key(), "hunter2");
  EXPECT_THAT(EffectiveText(*parsed), Not(HasSubstr("hunter2")));
  EXPECT_THAT(EffectiveText(*parsed), HasSubstr("variable BATON_API_KEY"));
}

}  // namespace
}  // namespace baton::config
