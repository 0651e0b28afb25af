// Chains whose last stage compiles what texts must be: requests wait at stage 0 for that, and
// others go on. Here nothing is compiled before the test opens a gate.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/engine/sampling/constraints.h"
#include "common/grammar/vocabulary.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

constexpr int kSlow = 100;  // The first attempt that has a structure.

struct Shape {
  int stages = 2;
  int ranks = 1;
};

class CompilingTest : public testing::TestWithParam<Shape> {
 protected:
  CompilingTest() : constraints_([this] { return Load(); }) {}
  ~CompilingTest() override {
    if (!gate_.HasBeenNotified()) gate_.Notify();
  }

  // Token i is the letter that it names.
  absl::StatusOr<Constraints::Vocabulary> Load() {
    gate_.WaitForNotification();
    if (!load_error_.ok()) return load_error_;
    std::vector<grammar::VocabularyToken> tokens(kFakeVocab);
    for (size_t i = 0; i < 26; ++i) tokens[i].bytes = std::string(1, static_cast<char>('a' + i));
    return std::make_shared<const grammar::Vocabulary>(tokens);
  }
  void Open(const absl::Status& error = absl::OkStatus()) {
    load_error_ = error;
    gate_.Notify();
  }

  void Start() {
    TestChain::Settings settings;
    settings.stages = GetParam().stages;
    settings.ranks = GetParam().ranks;
    settings.constraints = &constraints_;
    chain_ = std::make_unique<TestChain>(settings);
  }

  struct Slow {
    std::vector<int32_t> prompt = TestChain::Prompt(20, 3);
    Ticket ticket;
    std::future<absl::Status> status;

    bool Ended() const {
      return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }
  };
  // One whose first token must be a "q". Returns when the chain has it.
  static Slow Ask(TestChain& chain, uint64_t attempt_id = kSlow, int64_t timeout_ms = 60'000) {
    Slow slow;
    slow.ticket = chain.decode().Grant(20);
    v1::StartRequest request = TestChain::Request(attempt_id, slow.prompt, slow.ticket);
    request.mutable_sampling()->mutable_structure()->set_regex("q+");
    request.mutable_sampling()->add_stop_token_ids(999);
    request.set_timeout_ms(timeout_ms);
    slow.status = std::async(std::launch::async, [&chain, request] { return chain.Send(request); });
    // Refused, but with another status once its attempt is known.
    v1::StartRequest again = TestChain::Request(attempt_id, TestChain::Prompt(1, 1), slow.ticket);
    EXPECT_TRUE(
        chain.WaitFor([&] { return absl::IsAlreadyExists(chain.Send(again)) || slow.Ended(); }));
    return slow;
  }
  static void ExpectOthersGoOn(TestChain& chain) {
    for (uint64_t attempt_id = 1; attempt_id <= 3; ++attempt_id) {
      const std::vector<int32_t> prompt = TestChain::Prompt(40, static_cast<int>(attempt_id));
      const Ticket ticket = chain.decode().Grant(40);
      const absl::Status status = chain.Run(attempt_id, prompt, ticket, nullptr, 20'000);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(chain.decode().FirstToken(ticket), FakeFirstToken(prompt.back(), 40));
    }
  }

  Notification gate_;
  absl::Status load_error_;
  Constraints constraints_;
  std::unique_ptr<TestChain> chain_;  // Ends first, when the gate is open.
};

TEST_P(CompilingTest, OthersGoOnWhileTheLastStageCompiles) {
  Start();
  TestChain& chain = *chain_;
  ASSERT_TRUE(chain.WaitReady());
  Slow first = Ask(chain);
  Slow second = Ask(chain, kSlow + 1);
  ExpectOthersGoOn(chain);
  EXPECT_FALSE(first.Ended() || second.Ended());
  Open();
  for (Slow* slow : {&first, &second}) {
    const absl::Status status = slow->status.get();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(chain.decode().FirstToken(slow->ticket), 'q' - 'a');
  }
  Slow known = Ask(chain, kSlow + 2);
  EXPECT_TRUE(known.status.get().ok());
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(CompilingTest, WhatCannotBeCompiledEndsItsRequestAlone) {
  Start();
  TestChain& chain = *chain_;
  ASSERT_TRUE(chain.WaitReady());
  Slow slow = Ask(chain);
  Open(absl::InvalidArgumentError("no text can match it"));
  const absl::Status status = slow.status.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(LegOf(status), "prefill");
  ExpectOthersGoOn(chain);
}

TEST_P(CompilingTest, OneThatIsAbortedMeanwhileDelaysNobody) {
  Start();
  TestChain& chain = *chain_;
  ASSERT_TRUE(chain.WaitReady());
  Slow slow = Ask(chain);
  EXPECT_TRUE(chain.Abort(kSlow).ok());
  EXPECT_EQ(slow.status.get().code(), absl::StatusCode::kCancelled);
  ExpectOthersGoOn(chain);
}

TEST_P(CompilingTest, OneWaitsNoLongerThanItsTime) {
  Start();
  TestChain& chain = *chain_;
  ASSERT_TRUE(chain.WaitReady());
  Slow slow = Ask(chain, kSlow, /*timeout_ms=*/300);
  EXPECT_EQ(slow.status.get().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectOthersGoOn(chain);
}

// The compiler's answer would never come.
TEST_P(CompilingTest, AChainThatBreaksHoldsNothing) {
  Start();
  TestChain& chain = *chain_;
  ASSERT_TRUE(chain.WaitReady());
  Slow slow = Ask(chain);
  const int last = (GetParam().stages - 1) * GetParam().ranks;
  chain.KillStage(last);
  const absl::Status status = slow.status.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  chain.StartStage(last);
  chain.ShareView();
  ASSERT_TRUE(chain.WaitReady());
  ExpectOthersGoOn(chain);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompilingTest,
                         testing::Values(Shape{2, 1}, Shape{3, 1}, Shape{2, 2}),
                         [](const auto& info) {
                           return "Stages" + std::to_string(info.param.stages) + "Ranks" +
                                  std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace baton::prefill
