// Whether the checks ask for libtorch where it is needed, and there alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using preflight_testing::Check;
using preflight_testing::kRoomy;
using preflight_testing::Make;
using testing::HasSubstr;

struct Row {
  std::vector<std::string> args;
  std::string option;  // The option that needs it; empty: none.
  std::string words;
};

class TorchPreflightTest : public testing::Test {
 protected:
  PreflightReport With(config::Command command, std::vector<std::string> args,
                       const absl::Status& torch) {
    asked_ = 0;
    Machine machine = kRoomy;
    machine.check_torch = [this, torch] {
      ++asked_;
      return torch;
    };
    args.push_back("--model-path=" + model_.path);
    return Check(command, std::move(args), machine);
  }

  const model_testing::ModelDirectory model_ = Make("torch");
  int asked_ = 0;
};

TEST_F(TorchPreflightTest, WhatNeedsItIsRefusedWithoutIt) {
  const Row rows[] = {
      {{"--executor=torch"}, "executor", "got torch, and it is not here"},
      {{"--linear-backend=torch"}, "linear_backend", "got torch, and it is not here"},
      {{"--linear-backend=auto"}, "", ""},
      {{"--pp-size=2"}, "", ""},
      {{"--tp-size=2"}, "", ""},
      {{"--decode-tp-size=2"}, "", ""},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.args[0]);
    for (const config::Command command : {config::Command::kUp, config::Command::kValidate}) {
      const PreflightReport absent = With(command, row.args, absl::NotFoundError("it is not here"));
      EXPECT_EQ(asked_, row.option.empty() ? 0 : 1);
      ASSERT_EQ(absent.findings.size(), row.option.empty() ? 0u : 1u) << absent.status();
      if (row.option.empty()) continue;
      EXPECT_EQ(absent.findings[0].option, row.option);
      EXPECT_TRUE(absent.findings[0].refuses());
      EXPECT_THAT(absent.findings[0].message, HasSubstr(row.words));
      EXPECT_THAT(absent.findings[0].message, HasSubstr("(set by flag --"));
      EXPECT_TRUE(With(command, row.args, absl::OkStatus()).findings.empty());
    }
  }
}

// Its loading follows, which says the same.
TEST_F(TorchPreflightTest, AWorkerIsNotHeldUpByACheck) {
  const PreflightReport report = Check(
      config::Command::kWorker,
      {"--model-path=" + model_.path, "--disaggregation-mode=prefill", "--executor=torch"}, kRoomy);
  EXPECT_TRUE(report.status().ok()) << report.status();
}

}  // namespace
}  // namespace baton
