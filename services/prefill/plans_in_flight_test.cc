// However many plans are with an executor at once, and however prompts are cut and shared out, by
// whatever rule, every byte that a decode service gets and every first token are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <vector>

#include "common/base/random.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

class PlansInFlightTest : public testing::TestWithParam<int> {};

TEST_P(PlansInFlightTest, RandomChunksGiveWhatOnePassGives) {
  const int depth = GetParam();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << depth << " plans, seed " << seed);
    Random random(seed * 10 + static_cast<uint64_t>(depth));
    TestChain::Settings settings;
    settings.stages = static_cast<int>(random.Between(1, 3));
    settings.chunk_tokens = kFakePageSize * static_cast<int>(random.Between(1, 6));
    settings.credits = static_cast<int>(random.Between(1, depth + 1));
    settings.plans_in_flight = depth;
    settings.chunk_rule = static_cast<ChunkRule>(seed % 3);
    TestChain chain(settings);
    ASSERT_TRUE(chain.WaitReady());
    struct Case {
      std::vector<int32_t> prompt;
      Ticket ticket;
      std::future<absl::Status> status;
    };
    std::vector<Case> cases(8);
    for (size_t i = 0; i < cases.size(); ++i) {
      const int tokens = static_cast<int>(random.Between(1, i % 3 == 0 ? 500 : 90));
      cases[i].prompt = TestChain::Prompt(tokens, static_cast<int>(i));
      cases[i].ticket = chain.decode().Grant(tokens);
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      cases[i].status = std::async(std::launch::async, [&chain, &one = cases[i], i] {
        return chain.Run(i + 1, one.prompt, one.ticket);
      });
    }
    for (Case& one : cases) {
      const absl::Status status = one.status.get();
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(chain.decode().Check(one.ticket, one.prompt, settings.stages), "");
      EXPECT_EQ(chain.decode().FirstToken(one.ticket),
                FakeFirstToken(one.prompt.back(), static_cast<int>(one.prompt.size())));
    }
    EXPECT_TRUE(chain.WaitIdle());
  }
}

INSTANTIATE_TEST_SUITE_P(Depths, PlansInFlightTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace baton::prefill
