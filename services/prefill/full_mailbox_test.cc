// A service with a full mailbox: the request of whichever message is refused ends at once, nothing
// is held, and the chain serves the next one.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

// More messages than a request and the wiring of a chain after it bring to the loops.
constexpr int kMessages = 60;
// Far longer than a request takes, so that a request that ends only by timeout is told apart.
constexpr int64_t kTimeoutMs = 20'000;

class FullMailboxTest : public testing::TestWithParam<int> {
 protected:
  ~FullMailboxTest() override { EXPECT_TRUE(ArmFailpoints("").ok()); }

  // What was refused late may break the chain after it looks ready, but nothing does so twice.
  static void ServesTheNext(TestChain& chain, const std::vector<int32_t>& prompt) {
    absl::Status status;
    for (const uint64_t attempt_id : {2, 3}) {
      // A loop answers a request before it publishes that the chain is down. What it says when
      // asked comes after both, so that ready() is not of the time before the answer.
      ASSERT_TRUE(chain.WaitFor([&chain] { return chain.service(0).AtRest(); }));
      ASSERT_TRUE(chain.WaitReady());
      const Ticket ticket = chain.decode().Grant(200);
      status = chain.Run(attempt_id, prompt, ticket, nullptr, kTimeoutMs);
      if (!status.ok()) continue;
      EXPECT_EQ(chain.decode().Check(ticket, prompt, GetParam()), "");
      return;
    }
    FAIL() << status;
  }
};

// The failpoint stands in every Post of the loops of both stages, where what a full mailbox refuses
// is refused: the request, plans, credits, reports, abort. The ends of a stage's own work (a plan
// computed, KV sent) are posted as completions; one that is not would be dropped here, and its
// request would meet its deadline.
TEST_P(FullMailboxTest, EndsARequestWhicheverMessageItRefuses) {
  const auto prompt = TestChain::Prompt(200, 1);
  std::set<absl::StatusCode> seen;
  for (int message = 1; message <= kMessages; ++message) {
    SCOPED_TRACE(absl::StrCat("message ", message));
    // Another one each time: one that breaks often waits longer and longer.
    TestChain chain({.stages = GetParam()});
    ASSERT_TRUE(chain.WaitReady());
    ASSERT_TRUE(ArmFailpoints(absl::StrCat("prefill.mailbox=error@", message)).ok());
    const Ticket ticket = chain.decode().Grant(200);
    const absl::Status status = chain.Run(1, prompt, ticket, nullptr, kTimeoutMs);
    ASSERT_TRUE(ArmFailpoints("").ok());
    seen.insert(status.code());
    if (status.ok()) {
      EXPECT_EQ(chain.decode().Check(ticket, prompt, GetParam()), "");
    } else {
      ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
    ASSERT_TRUE(chain.WaitIdle());
    ServesTheNext(chain, prompt);
  }
  // The first refused the request itself; the last ones came too late to refuse anything of it.
  EXPECT_EQ(seen, (std::set{absl::StatusCode::kOk, absl::StatusCode::kUnavailable}));
}

TEST_P(FullMailboxTest, LosesNoView) {
  TestChain chain({.stages = GetParam()});
  ASSERT_TRUE(chain.WaitReady());
  const int last = GetParam() - 1;
  if (last == 0) return;  // A chain of one stage is wired by no view.
  // UCX 1.13 ends the process when a peer dies in the middle of connecting.
  const auto prompt = TestChain::Prompt(200, 1);
  ASSERT_TRUE(chain.Run(1, prompt, chain.decode().Grant(200), nullptr, kTimeoutMs).ok());
  chain.KillStage(last);
  ASSERT_TRUE(ArmFailpoints("prefill.mailbox=error").ok());
  chain.ShareView();
  ASSERT_TRUE(chain.WaitFor([&] { return !chain.service(0).ready(); }));
  ASSERT_TRUE(ArmFailpoints("").ok());
  chain.StartStage(last);
  ASSERT_TRUE(ArmFailpoints("prefill.mailbox=error@1").ok());
  chain.ShareView();
  EXPECT_TRUE(chain.WaitReady());
}

INSTANTIATE_TEST_SUITE_P(Stages, FullMailboxTest, testing::Values(1, 3));

}  // namespace
}  // namespace baton::prefill
