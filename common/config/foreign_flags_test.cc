#include "common/config/foreign_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/option_table.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Parse;
using ::testing::StartsWith;

// The options behind `python3 -m sglang.launch_server --model-path M` of SGLang's guide to pipeline
// parallelism, all four lines together.
std::vector<std::string> LaunchLine(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = absl::StrSplit(
      "--trust-remote-code --nnodes 4 --node-rank 0 --tp 8 --pp-size 4 --port 30000 "
      "--dist-init-addr 10.0.0.2 --disable-radix-cache --mem-fraction-static 0.8 "
      "--attention-backend fa3 --host 0.0.0.0 --watchdog-timeout 3600 --max-running-requests 128 "
      "--chunked-prefill-size 12288 --enable-dynamic-chunking",
      ' ');
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

struct Process {
  Command command;
  std::vector<std::string> mode;
};

std::vector<Process> Processes() {
  return {{Command::kRouter, {}},
          {Command::kServe, {}},
          {Command::kWorker, {"--disaggregation-mode", "prefill"}},
          {Command::kWorker, {"--disaggregation-mode", "decode"}},
          {Command::kUp, {}},
          {Command::kValidate, {}},
          {Command::kValidate, {"--disaggregation-mode", "prefill"}},
          {Command::kValidate, {"--disaggregation-mode", "decode"}}};
}

std::string Name(const Process& process) {
  return CommandName(process.command) + (process.mode.empty() ? "" : " " + process.mode[1]);
}

TEST(ForeignFlagsTest, AreNotOurs) {
  for (const ForeignFlag& row : ForeignFlags()) {
    const Option* option = FindByFlag(row.name);
    const bool ours = option != nullptr && RolesText(*option) != "model";
    EXPECT_FALSE(ours) << row.name << " is an option or alias by now";
  }
  for (const Option& option : OptionTable()) {
    // A mistyped flag of ours must not be taken for one of theirs.
    const std::string typed = option.flag.substr(0, option.flag.size() - 1);
    const ForeignFlag* row = FindForeignFlag(typed);
    const bool refused = row != nullptr && row->fate == ForeignFlag::Fate::kRefused;
    EXPECT_TRUE(row == nullptr || row->only != nullptr || (refused && row->text != nullptr))
        << typed;
  }
}

TEST(ForeignFlagsTest, TextsNameFlagsThatExist) {
  std::vector<std::string> texts;
  for (const ForeignFlag& row : ForeignFlags()) {
    std::string sample = row.name;
    std::replace(sample.begin(), sample.end(), '*', 'x');
    texts.push_back(ForeignFlagAdvice(sample));
    ASSERT_NE(texts.back(), "") << sample;
    if (row.fate == ForeignFlag::Fate::kTaken) {
      EXPECT_NE(row.text, nullptr) << sample;
    }
    if (row.beside != nullptr) {
      EXPECT_NE(FindForeignFlag(row.beside), nullptr) << sample;
    }
  }
  for (const Option& option : OptionTable()) texts.push_back(ElsewhereText(option.name));
  for (const std::string& text : texts) {
    for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
      const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at + 2);
      EXPECT_NE(FindByFlag(text.substr(at + 2, end - at - 2)), nullptr) << text;
    }
  }
}

TEST(ForeignFlagsTest, SglangsLaunchLineGoesBehindEveryCommand) {
  for (const Process& process : Processes()) {
    SCOPED_TRACE(Name(process));
    const auto parsed = Parse({.args = LaunchLine(process.mode), .command = process.command});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->values.host(), "0.0.0.0");
    // One line each for what means something else, or nothing, in this process.
    for (const char* flag :
         {"--trust-remote-code: ", "--attention-backend=fa3: ", "--watchdog-timeout=3600: "}) {
      EXPECT_EQ(std::count_if(parsed->notes.begin(), parsed->notes.end(),
                              [&](const std::string& note) { return note.starts_with(flag); }),
                1)
          << flag;
    }
    const bool serves_http = process.mode.empty();
    EXPECT_EQ(parsed->values.port(), 30000);
    EXPECT_EQ(std::any_of(parsed->notes.begin(), parsed->notes.end(),
                          [](const std::string& note) { return note.starts_with("--port: "); }),
              !serves_http);
  }
}

TEST(ForeignFlagsTest, SglangsLaunchLineIsHonouredWhereItApplies) {
  const auto prefill =
      Parse({.args = LaunchLine({"--disaggregation-mode=prefill"}), .command = Command::kWorker});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->values.tp_size(), 8);
  EXPECT_EQ(prefill->values.pp_size(), 4);
  EXPECT_EQ(prefill->values.nnodes(), 4);
  EXPECT_EQ(prefill->values.chain_id(), "10.0.0.2");
  EXPECT_EQ(prefill->values.mem_fraction_static(), "0.8");
  EXPECT_EQ(prefill->values.chunked_prefill_size(), 12288);
  EXPECT_EQ(prefill->values.chunk_policy(), "sglang");
  EXPECT_THAT(prefill->notes, Contains(HasSubstr("--max-running-requests: nothing for prefill; it "
                                                 "bounds what a decode service or a colocated")));
  // As in SGLang, a line without the mode is a worker that does both.
  const auto colocated = Parse({.args = LaunchLine({}), .command = Command::kWorker});
  ASSERT_TRUE(colocated.ok()) << colocated.status();
  EXPECT_EQ(colocated->role, v1::OptionSpec::COLOCATED);
  EXPECT_EQ(colocated->values.max_running_requests(), 128);
  EXPECT_EQ(colocated->values.pp_size(), 4);
  EXPECT_EQ(colocated->values.chain_id(), "10.0.0.2");
  // `validate` says what the process would.
  const auto validated =
      Parse({.args = LaunchLine({"--disaggregation-mode=prefill"}), .command = Command::kValidate});
  ASSERT_TRUE(validated.ok()) << validated.status();
  EXPECT_THAT(validated->notes, ::testing::UnorderedElementsAreArray(prefill->notes));
  const auto decode =
      Parse({.args = LaunchLine({"--disaggregation-mode=decode"}), .command = Command::kWorker});
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->values.max_running_requests(), 128);
  EXPECT_THAT(
      decode->notes,
      Contains(StartsWith("--chunked-prefill-size: nothing for decode; it is for prefill")));
}

// The lines of SGLang's page on disaggregation.
TEST(ForeignFlagsTest, LinesForDisaggregationAreTaken) {
  struct Row {
    Command command;
    const char* line;
    size_t notes;
  };
  const Row rows[] = {
      {Command::kWorker,
       "--disaggregation-mode prefill --port 30000 --disaggregation-ib-device mlx5_roce0", 2},
      {Command::kWorker,
       "--disaggregation-mode decode --port 30001 --base-gpu-id 1 "
       "--disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8998",
       3},
      {Command::kWorker,
       "--disaggregation-ib-device mlx5_0 --disaggregation-mode decode --host 127.0.0.1 --port "
       "30001 --trust-remote-code --dist-init-addr 10.0.0.2:5000 --nnodes 2 --node-rank 1 "
       "--tp-size 16 --dp-size 8 --enable-dp-attention --moe-a2a-backend deepep "
       "--mem-fraction-static 0.8 --max-running-requests 128",
       6},
      {Command::kRouter,
       "--pd-disaggregation --prefill http://127.0.0.1:30000 8998 --prefill http://a:1 none "
       "--decode http://127.0.0.1:30001 --policy round_robin --host 0.0.0.0 --port 8000",
       4},
      {Command::kUp, "--cuda-graph-bs 1 2 4 --schedule-conservativeness 0.3 --enable-metrics", 3},
      {Command::kUp,
       "--max-model-len 4096 --gpu-memory-utilization 0.5 --enforce-eager --seed 0 "
       "--disable-log-requests --load-format auto --tokenizer-mode auto --dtype float",
       3},
      {Command::kWorker, "--enable-mixed-chunk --tp 2 --max-running-requests 8", 1},
      {Command::kServe, "--enable-mixed-chunk --tensor-parallel-size 2 --max-num-seqs 8", 1},
      {Command::kUp, "--log-requests --log-requests-level 2", 1},
      {Command::kUp, "--enable-metrics=false", 0},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.line);
    const auto parsed = Parse({.args = absl::StrSplit(row.line, ' '), .command = row.command});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->notes.size(), row.notes) << ::testing::PrintToString(parsed->notes);
  }
}

TEST(ForeignFlagsTest, SwitchesOfOthersSetOptions) {
  const auto off = Parse({.args = {"--disable-log-requests"}});
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->values.log_requests(), "off");
  EXPECT_EQ(SourceText(off->sources.at("log_requests")), "flag --disable-log-requests");
  const auto on = Parse({.args = {"--log-requests=off", "--log-requests", "--port=1"}});
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_EQ(on->values.log_requests(), "on");
  EXPECT_EQ(on->values.port(), 1);
  EXPECT_THAT(on->notes, IsEmpty());
}

TEST(ForeignFlagsTest, WhatAsksForSomethingElseIsRefused) {
  struct Row {
    std::vector<std::string> args;
    std::string field;
    std::string message;
  };
  const Row rows[] = {
      {{"--load-format=gguf"}, "load-format", "got 'gguf', expected auto or safetensors"},
      {{"--quantization", "awq"}, "quantization", "got 'awq', expected none"},
      {{"--dp-size=8"}, "dp-size", "expected 1"},
      {{"--stream-interval=10"}, "stream-interval", "expected 1"},
      {{"--speculative-algorithm=EAGLE"}, "speculative-algorithm", "nothing like it"},
      {{"--watchdog-timeout"}, "watchdog-timeout", "needs a value"},
      {{"--watchdog-timeout", "--port=1"}, "watchdog-timeout", "needs a value"},
      {{"--prefill", "--port=1"}, "prefill", "needs a value"},
      {{"--decode=2"}, "decode", "got '2', expected http://*"},
      {{"--trust-remote-code=maybe"}, "trust-remote-code", "takes no value, got 'maybe'"},
      {{"--trust-remote-code", "fa3"}, "fa3", "unexpected argument"},
      {{"--attention-backend", "fa3", "fa3"}, "fa3", "unexpected argument"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.args[0]);
    const auto parsed = Parse({.args = row.args});
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(FieldOf(parsed.status()), row.field);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(row.message));
  }
}

// A value is untrusted text that ends up in a log.
TEST(ForeignFlagsTest, ValuesInNotesAreShortAndOfOneLine) {
  const auto parsed = Parse(
      {.args = {"--attention-backend", "a\nb", "--sampling-backend", std::string(1000, 'x')}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->notes, ElementsAre(StartsWith("--attention-backend=a\\nb: "),
                                         StartsWith("--sampling-backend=xxx")));
  EXPECT_LT(parsed->notes[1].size(), 200u);
}

}  // namespace
}  // namespace baton::config
