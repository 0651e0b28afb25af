// Chains whose stages are several ranks: real services, links, rendezvous and communicators in one
// process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/prefill/testing/gate.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

struct Shape {
  int stages;
  int ranks;
  int writers;  // Ranks that write a stage's two KV heads.
};

class RankChainTest : public testing::TestWithParam<Shape> {};

TEST_P(RankChainTest, HandsOverWhatOneProcessWould) {
  const Shape shape = GetParam();
  TestChain chain({.stages = shape.stages, .ranks = shape.ranks, .plans_in_flight = 3});
  ASSERT_TRUE(chain.WaitReady());
  std::vector<std::thread> clients;
  clients.reserve(4);
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      const std::vector<int32_t> prompt = TestChain::Prompt(50 + 61 * i, i);
      const Ticket ticket = chain.decode().Grant(static_cast<int>(prompt.size()));
      v1::PrefillReport report;
      const absl::Status status = chain.Run(static_cast<uint64_t>(i) + 1, prompt, ticket, &report);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(chain.decode().Check(ticket, prompt, shape.stages * shape.writers), "");
      EXPECT_EQ(report.chunks(0).stages_size(), shape.stages);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(chain.WaitIdle());
}

INSTANTIATE_TEST_SUITE_P(Shapes, RankChainTest,
                         testing::Values(Shape{1, 2, 2}, Shape{2, 2, 2}, Shape{3, 2, 2},
                                         Shape{2, 4, 2}, Shape{1, 4, 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.stages, "StagesOf", info.param.ranks);
                         });

// A decode service of ranks of its own: every one of them gets its heads from those that have them.
class DecodeRanksTest : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(DecodeRanksTest, EveryRankOfDecodeGetsItsHeads) {
  const auto& [ranks, decode_ranks] = GetParam();
  TestChain chain({.stages = 2, .ranks = ranks, .decode_ranks = decode_ranks});
  ASSERT_TRUE(chain.WaitReady());
  for (const int tokens : {200, 64, 1}) {
    const std::vector<int32_t> prompt = TestChain::Prompt(tokens, tokens);
    const Ticket ticket = chain.GrantRanks(tokens);
    const absl::Status status = chain.Run(static_cast<uint64_t>(tokens), prompt, ticket);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(chain.CheckRanks(ticket, prompt), "");
  }
  EXPECT_TRUE(chain.WaitIdle());
}

INSTANTIATE_TEST_SUITE_P(Ranks, DecodeRanksTest,
                         testing::Values(std::pair(1, 2), std::pair(1, 4), std::pair(2, 2),
                                         std::pair(2, 4), std::pair(4, 1), std::pair(4, 2),
                                         std::pair(4, 4)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "To", info.param.second);
                         });

TEST(RankChainTest, ATicketOfRanksThatCannotShareTheHeadsIsRefused) {
  TestChain chain({.stages = 1});
  ASSERT_TRUE(chain.WaitReady());
  Ticket ticket = chain.decode().Grant(20);
  ticket.followers = {{"decode-0-1", 2}, {"decode-0-2", 3}};  // Three to share two heads.
  const absl::Status status = chain.Run(1, TestChain::Prompt(20, 1), ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), "ticket.followers");
}

// Penalties and prompt log-probabilities make the last stage look at prompts, on its rank 0 alone.
TEST(RankChainTest, TellsPromptLogprobs) {
  TestChain chain({.stages = 2, .ranks = 2});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(80, 1);
  const Ticket ticket = chain.decode().Grant(80);
  v1::StartRequest request = TestChain::Request(1, prompt, ticket);
  request.mutable_sampling()->set_prompt_logprobs(true);
  v1::StartResponse response;
  ASSERT_EQ(chain.Send(request, response), absl::OkStatus());
  ASSERT_EQ(response.prompt_tokens_size(), 79);
  EXPECT_EQ(chain.decode().Check(ticket, prompt, 4), "");
}

// How many steps there are depends on the machine: a slow one makes the rest too dear.
TEST(RankChainTest, RanksMeasureInTheSameSteps) {
  std::array<std::atomic<int>, 2> steps{};
  TestChain::Settings settings = {.stages = 1, .ranks = 2};
  settings.rank_sweep =
      SweepLimits{.max_chunk_tokens = 512, .max_context_tokens = 4096, .budget_us = 60'000'000};
  settings.page_count = 256;
  for (int rank = 0; rank < 2; ++rank) {
    settings.before_forward[rank] = [&steps, rank] { ++steps[static_cast<size_t>(rank)]; };
  }
  TestChain chain(settings);
  ASSERT_TRUE(chain.WaitReady());
  EXPECT_GT(steps[0], 1);
  EXPECT_EQ(steps[1], steps[0]);
}

// What chunks cost is measured by all ranks of a stage before it is ready;
// once, though a rank comes back. The second stage's fake ranks fail at the first step, as they
// were sent no activations: their group ends, and the next one serves without having measured.
// They fail only after the first stage has begun, which their failure cuts short.
TEST(RankChainTest, RanksMeasureTogetherBeforeTheyAreReady) {
  std::array<std::atomic<int>, 4> steps{};
  TestChain::Settings settings = {.stages = 2, .ranks = 2};
  settings.rank_sweep =
      SweepLimits{.max_chunk_tokens = 512, .max_context_tokens = 4096, .budget_us = 60'000'000};
  settings.page_count = 256;
  const auto wait_for_the_first_stage = [&steps] {
    const int64_t patience_us = NowUs() + 10'000'000;
    while ((steps[0] == 0 || steps[1] == 0) && NowUs() < patience_us) std::this_thread::yield();
  };
  for (int rank = 0; rank < 4; ++rank) {
    settings.before_forward[rank] = [&steps, rank, wait_for_the_first_stage] {
      ++steps[static_cast<size_t>(rank)];
      if (rank >= 2) wait_for_the_first_stage();
    };
  }
  TestChain chain(settings);
  ASSERT_TRUE(chain.WaitReady());
  const int measured = steps[0];  // The end of the second stage's group may cut it short.
  EXPECT_GT(measured, 0);
  EXPECT_GT(steps[1], 0);
  EXPECT_EQ(steps[2], 1);
  EXPECT_EQ(steps[3], 1);

  chain.KillStage(1);
  chain.ShareView();
  chain.StartStage(1);
  chain.ShareView();
  const std::vector<int32_t> prompt = TestChain::Prompt(64, 1);
  uint64_t attempt_id = 0;
  Ticket ticket;
  EXPECT_TRUE(chain.WaitFor([&] {
    ticket = chain.decode().Grant(64);
    return chain.Run(++attempt_id, prompt, ticket).ok();
  }));
  EXPECT_EQ(chain.decode().Check(ticket, prompt, 4), "");
  // Two chunks each.
  EXPECT_LE(steps[0], measured + 2 * static_cast<int>(attempt_id)) << "it knows already";
}

// Whichever rank dies, what runs ends with its name, and the chain works again once it is back.
TEST(RankChainTest, ARankThatDiesEndsTheEpochAndComesBack) {
  for (const int victim : {1, 2, 3}) {
    TestChain chain({.stages = 2, .ranks = 2});
    ASSERT_TRUE(chain.WaitReady());
    const std::vector<int32_t> prompt = TestChain::Prompt(400, victim);
    chain.KillStage(victim);
    const Ticket lost = chain.decode().Grant(400);
    const int64_t begun_us = NowUs();
    const absl::Status status = chain.Run(1, prompt, lost);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(NowUs() - begun_us, 10'000'000);
    chain.ShareView();
    chain.StartStage(victim);
    chain.ShareView();
    ASSERT_TRUE(chain.WaitReady());
    const Ticket ticket = chain.decode().Grant(400);
    EXPECT_EQ(chain.Run(2, prompt, ticket), absl::OkStatus());
    EXPECT_EQ(chain.decode().Check(ticket, prompt, 4), "");
    EXPECT_TRUE(chain.WaitIdle());
  }
}

// A rank that stands still in a step delays the others' sums: they report which rank they wait for.
TEST(RankChainTest, ARankThatStandsStillIsNamed) {
  Gate gate;
  TestChain chain({.stages = 2, .ranks = 2, .before_forward = {{3, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(64, 1);
  const Ticket lost = chain.decode().Grant(64);
  const absl::Status status = chain.Run(1, prompt, lost);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(InstanceOf(status), "prefill-3") << status;
  gate.Open();
  uint64_t attempt_id = 1;
  Ticket ticket;
  EXPECT_TRUE(chain.WaitFor([&] {  // The next epoch takes a moment.
    ticket = chain.decode().Grant(64);
    return chain.Run(++attempt_id, prompt, ticket).ok();
  }));
  EXPECT_EQ(chain.decode().Check(ticket, prompt, 4), "");
}

// A rank that misses its neighbour in the next stage ends its stage's group: stage 0 learns of it
// first by its own step's end, whose status names the neighbour that the other rank misses.
TEST(RankChainTest, ARankThatMissesItsNeighbourTellsItsGroupWhom) {
  Gate gate;
  TestChain chain({.stages = 2, .ranks = 2, .before_forward = {{1, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  auto running = std::async(std::launch::async, [&] {
    return chain.Run(1, TestChain::Prompt(64, 1), chain.decode().Grant(64));
  });
  gate.WaitEntered();  // Rank 0 waits for it in a sum.
  chain.Disconnect(1, 3);
  chain.ShareView();
  const absl::Status status = running.get();
  gate.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("to prefill-3")) << status;
}

// Epoch after epoch, each with groups of its own.
TEST(RankChainTest, GroupsFormAnewWithEveryEpoch) {
  TestChain chain({.stages = 2, .ranks = 2});
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(chain.WaitReady()) << round;
    const std::vector<int32_t> prompt = TestChain::Prompt(90, round);
    const Ticket ticket = chain.decode().Grant(90);
    ASSERT_EQ(chain.Run(static_cast<uint64_t>(round) + 1, prompt, ticket), absl::OkStatus());
    EXPECT_EQ(chain.decode().Check(ticket, prompt, 4), "");
    chain.KillStage(2);
    chain.ShareView();
    chain.StartStage(2);
    chain.ShareView();
  }
}

}  // namespace
}  // namespace baton::prefill
