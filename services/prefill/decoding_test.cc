// Colocated chains: real services, links and data planes with fake executors. Each text is compared
// with what the fake model says of its context.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "services/prefill/testing/gate.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

struct Answer {
  absl::Status status;
  std::optional<v1::StartResponse> prompt;
  std::vector<v1::DecodeToken> tokens;
  std::optional<v1::FinishReason> reason;

  std::vector<int32_t> Text() const {
    std::vector<int32_t> ids;
    for (const v1::DecodeToken& token : tokens) ids.push_back(token.token_id());
    return ids;
  }
};

v1::StartRequest RequestOf(uint64_t attempt_id, const std::vector<int32_t>& prompt,
                           int max_tokens) {
  v1::StartRequest request = TestChain::Request(attempt_id, prompt, {});
  request.clear_ticket();
  request.mutable_sampling()->set_max_tokens(max_tokens);
  return request;
}

Answer Generate(TestChain& chain, const v1::StartRequest& request, int rank = 0) {
  Answer answer;
  grpc::ClientContext context;
  const auto stub = chain.Stub(rank);
  const auto reader = stub->Generate(&context, request);
  v1::DecodeGenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_prompt()) {
      EXPECT_FALSE(answer.prompt.has_value() || !answer.tokens.empty());
      answer.prompt = response.prompt();
    }
    if (response.has_token()) answer.tokens.push_back(response.token());
    if (response.has_finished()) answer.reason = response.finished().reason();
  }
  answer.status = rpc::FromGrpc(reader->Finish());
  return answer;
}

std::vector<int32_t> TextOf(const std::vector<int32_t>& prompt, int tokens) {
  std::vector<int32_t> text;
  int32_t last = prompt.back();
  while (static_cast<int>(text.size()) < tokens) {
    last = FakeFirstToken(last, static_cast<int>(prompt.size() + text.size()));
    text.push_back(last);
  }
  return text;
}

struct Shape {
  int stages = 1;
  int ranks = 1;
};

class ColocatedTest : public testing::TestWithParam<Shape> {};

TEST_P(ColocatedTest, DecodesWhatItReads) {
  const auto [stages, ranks] = GetParam();
  TestChain chain({.stages = stages, .ranks = ranks, .page_count = 256, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  std::vector<std::thread> clients;
  clients.reserve(6);
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&chain, i] {
      const std::vector<int32_t> prompt = TestChain::Prompt(1 + 61 * i, i);
      const int tokens = 1 + 9 * i;
      const Answer answer =
          Generate(chain, RequestOf(static_cast<uint64_t>(i) + 1, prompt, tokens));
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.Text(), TextOf(prompt, tokens));
      EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH);
      ASSERT_TRUE(answer.prompt.has_value());
      EXPECT_GT(answer.prompt->report().chunks_size(), 0);
      EXPECT_EQ(answer.prompt->report().kv_bytes(), 0);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(ColocatedTest, HandsOverBesideDecoding) {
  const auto [stages, ranks] = GetParam();
  TestChain chain({.stages = stages, .ranks = ranks, .page_count = 256, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> read = TestChain::Prompt(40, 1);
  const std::vector<int32_t> handed = TestChain::Prompt(300, 2);
  const Ticket ticket = chain.decode().Grant(300);
  std::thread client([&] {
    const absl::Status status = chain.Run(2, handed, ticket);
    EXPECT_TRUE(status.ok()) << status;
  });
  EXPECT_EQ(Generate(chain, RequestOf(1, read, 60)).Text(), TextOf(read, 60));
  client.join();
  EXPECT_EQ(chain.decode().Check(ticket, handed, stages * ranks), "");
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(ColocatedTest, StopsWhereItIsTold) {
  const auto [stages, ranks] = GetParam();
  TestChain chain({.stages = stages, .ranks = ranks, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(20, 1);
  const std::vector<int32_t> text = TextOf(prompt, 5);
  v1::StartRequest request = RequestOf(1, prompt, 50);
  request.mutable_sampling()->add_stop_token_ids(text.back());
  const Answer answer = Generate(chain, request);
  EXPECT_EQ(answer.Text(), text);
  EXPECT_EQ(answer.reason, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(chain.WaitIdle());
}

INSTANTIATE_TEST_SUITE_P(Shapes, ColocatedTest,
                         testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{3, 1}, Shape{1, 2},
                                         Shape{2, 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.stages, "StagesOf", info.param.ranks);
                         });

TEST(DecodingTest, TellsLogprobsOfPromptAndText) {
  TestChain chain({.stages = 2, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(50, 1);
  v1::StartRequest request = RequestOf(1, prompt, 3);
  request.mutable_sampling()->set_logprobs(true);
  request.mutable_sampling()->set_prompt_logprobs(true);
  request.mutable_sampling()->set_top_logprobs(2);
  const Answer answer = Generate(chain, request);
  ASSERT_TRUE(answer.prompt.has_value()) << answer.status;
  EXPECT_EQ(answer.prompt->prompt_tokens_size(), 49);
  ASSERT_EQ(answer.tokens.size(), 3u);
  for (const v1::DecodeToken& token : answer.tokens) {
    EXPECT_NEAR(token.logprobs().logprob(), 0, 1e-3);
    EXPECT_EQ(token.logprobs().top_size(), 2);
  }
}

// The likely token is 30 ahead of the others, so one that 20 occurrences have cost 2 each is not
// drawn: the last stage counts what it has drawn.
TEST(DecodingTest, PenaltiesSeeTheWholeText) {
  const std::vector<int32_t> prompt = TestChain::Prompt(20, 1);
  std::vector<std::vector<int32_t>> texts;
  for (const int stages : {1, 3}) {
    TestChain chain({.stages = stages, .decodes = true});
    ASSERT_TRUE(chain.WaitReady());
    v1::StartRequest request = RequestOf(1, prompt, 60);
    request.mutable_sampling()->set_repetition_penalty(2);
    request.mutable_sampling()->set_frequency_penalty(2);
    v1::LogitBias& bias = *request.mutable_sampling()->add_logit_bias();
    bias.set_token_id(7);
    bias.set_bias(60);
    texts.push_back(Generate(chain, request).Text());
  }
  ASSERT_EQ(texts[0].size(), 60u);
  EXPECT_EQ(texts[0], texts[1]);
  const auto sevens = std::count(texts[0].begin(), texts[0].end(), 7);
  EXPECT_GT(sevens, 3);
  EXPECT_LT(sevens, 40);
}

// A chain that reads the prompt and a part of the text goes on with the rest.
TEST_P(ColocatedTest, GoesOnWithATextThatWasBegunElsewhere) {
  const auto [stages, ranks] = GetParam();
  TestChain chain({.stages = stages, .ranks = ranks, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  uint64_t attempt = 0;
  for (const bool penalised : {false, true}) {
    v1::StartRequest whole = RequestOf(++attempt, TestChain::Prompt(20, 1), 60);
    if (penalised) {
      whole.mutable_sampling()->set_repetition_penalty(2);
      whole.mutable_sampling()->set_frequency_penalty(2);
      v1::LogitBias& bias = *whole.mutable_sampling()->add_logit_bias();
      bias.set_token_id(7);
      bias.set_bias(60);
    }
    const std::vector<int32_t> text = Generate(chain, whole).Text();
    ASSERT_EQ(text.size(), 60u);
    for (const int drawn : {1, 33, 59}) {
      v1::StartRequest rest = whole;
      rest.set_attempt_id(++attempt);
      rest.mutable_sampling()->set_drawn_tokens(drawn);
      for (int i = 0; i < drawn; ++i) rest.add_fixed_prompt_token_ids(text[static_cast<size_t>(i)]);
      const Answer answer = Generate(chain, rest);
      EXPECT_EQ(answer.Text(), std::vector<int32_t>(text.begin() + drawn, text.end()))
          << answer.status;
      EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH);
    }
  }
}

TEST(DecodingTest, TheContextBoundsTheText) {
  TestChain chain({.stages = 2, .page_count = 8, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(100, 1);
  const Answer answer = Generate(chain, RequestOf(1, prompt, 1000));
  EXPECT_EQ(answer.Text(), TextOf(prompt, 28)) << answer.status;
  EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH);
}

TEST(DecodingTest, RefusesWhatIsNotForIt) {
  TestChain colocated({.stages = 2, .decodes = true});
  TestChain plain({.stages = 1});
  ASSERT_TRUE(colocated.WaitReady() && plain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(20, 1);
  v1::StartRequest ticketed = RequestOf(1, prompt, 5);
  *ticketed.mutable_ticket() = TestChain::Request(1, prompt, colocated.decode().Grant(20)).ticket();
  EXPECT_EQ(FieldOf(Generate(colocated, ticketed).status), "ticket");
  EXPECT_EQ(FieldOf(colocated.Send(RequestOf(1, prompt, 5))), "ticket");
  EXPECT_EQ(FieldOf(Generate(colocated, RequestOf(1, TestChain::Prompt(1024, 1), 5)).status),
            "prompt_token_ids");
  EXPECT_TRUE(absl::IsFailedPrecondition(Generate(colocated, RequestOf(1, prompt, 5), 1).status));
  v1::StartRequest all_drawn = RequestOf(1, prompt, 50);
  all_drawn.mutable_sampling()->set_drawn_tokens(20);
  EXPECT_EQ(FieldOf(Generate(colocated, all_drawn).status), "sampling.drawn_tokens");
  const absl::Status status = Generate(plain, RequestOf(1, prompt, 5)).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), plain.instance(0).id);
}

// The same prompt again, and the conversation that goes on, decoded and handed over: what is cached
// is not computed, and all bytes of it are handed over.
TEST_P(ColocatedTest, SharesPrefixes) {
  const auto [stages, ranks] = GetParam();
  TestChain chain({.stages = stages, .ranks = ranks, .decodes = true, .caches = true});
  ASSERT_TRUE(chain.WaitReady());
  std::vector<int32_t> context = TestChain::Prompt(100, 1);
  std::vector<int> cached;
  for (const int repeats : {1, 2, 3}) {
    const Answer answer = Generate(chain, RequestOf(static_cast<uint64_t>(repeats), context, 40));
    EXPECT_EQ(answer.Text(), TextOf(context, 40)) << answer.status;
    ASSERT_TRUE(answer.prompt.has_value());
    cached.push_back(answer.prompt->report().cached_tokens());
    // What was decoded is cached when the request is over on every stage.
    ASSERT_TRUE(chain.WaitFor([&chain] { return chain.service(0).AtRest(); }));
    if (repeats < 2) continue;
    const std::vector<int32_t> text = answer.Text();
    context.insert(context.end(), text.begin(), text.end());
  }
  EXPECT_EQ(cached,
            (std::vector<int>{0, 96, 128}));  // 100; the same; with 40 more, 39 of them fed.
  const Ticket ticket = chain.decode().Grant(static_cast<int>(context.size()));
  v1::PrefillReport report;
  const absl::Status status = chain.Run(9, context, ticket, &report);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(report.cached_tokens(), 176);  // All but the last tokens of 180.
  EXPECT_EQ(chain.decode().Check(ticket, context, stages * ranks), "");
  EXPECT_TRUE(chain.WaitIdle());

  grpc::ClientContext client;
  v1::FlushCacheResponse flushed;
  ASSERT_TRUE(chain.Stub(0)->FlushCache(&client, {}, &flushed).ok());
  EXPECT_GE(flushed.pages(), 11);
  v1::StartRequest salted = RequestOf(10, context, 1);
  EXPECT_EQ(Generate(chain, salted).prompt->report().cached_tokens(), 0);
  salted.set_attempt_id(11);
  salted.set_cache_salt("tenant");
  EXPECT_EQ(Generate(chain, salted).prompt->report().cached_tokens(), 0);
  salted.set_cache_salt(std::string(257, 's'));
  EXPECT_EQ(FieldOf(Generate(chain, salted).status), "cache_salt");
}

// Seven texts that together need twice the pages that there are. Penalties look at what was drawn
// before a request gave way, too.
TEST_P(ColocatedTest, TextsAreTheSameWhenRequestsGiveWay) {
  const auto [stages, ranks] = GetParam();
  const auto request_of = [](int i) {
    v1::StartRequest request =
        RequestOf(static_cast<uint64_t>(i) + 1, TestChain::Prompt(20 + 9 * i, i), 90 + 10 * i);
    if (i % 2 == 0) return request;
    request.mutable_sampling()->set_repetition_penalty(2);
    request.mutable_sampling()->set_frequency_penalty(2);
    v1::LogitBias& bias = *request.mutable_sampling()->add_logit_bias();
    bias.set_token_id(7);
    bias.set_bias(60);
    return request;
  };
  std::vector<std::vector<int32_t>> expected;
  {
    TestChain roomy({.decodes = true});
    ASSERT_TRUE(roomy.WaitReady());
    for (int i = 0; i < 7; ++i) expected.push_back(Generate(roomy, request_of(i)).Text());
  }
  TestChain chain({.stages = stages,
                   .ranks = ranks,
                   .page_count = 28,
                   .decodes = true,
                   .caches = true,
                   .reserved_decode_tokens = 3});
  ASSERT_TRUE(chain.WaitReady());
  std::vector<std::thread> clients;
  clients.reserve(7);
  for (int i = 0; i < 7; ++i) {
    clients.emplace_back([&, i] {
      const Answer answer = Generate(chain, request_of(i));
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.Text(), expected[static_cast<size_t>(i)]);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(chain.WaitIdle());
  // Stage 0 tells of it a few times a second.
  EXPECT_TRUE(chain.WaitFor([&chain] {
    const std::string metrics = chain.Scrape(0);
    const size_t at = metrics.find("\nbaton_retractions_total{");
    if (at == std::string::npos) return false;
    const size_t value = metrics.find("} ", at) + 2;
    return metrics.substr(value, metrics.find('\n', value) - value) != "0";
  })) << "nothing gave way";
}

TEST(DecodingTest, ACancelledStreamFreesItsPages) {
  TestChain chain({.stages = 2, .page_count = 4096, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  grpc::ClientContext context;
  const auto stub = chain.Stub(0);
  const auto reader = stub->Generate(&context, RequestOf(1, TestChain::Prompt(20, 1), 60'000));
  v1::DecodeGenerateResponse response;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(reader->Read(&response));
  EXPECT_LT(chain.service(0).load().free_pages(), 4096);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(chain.WaitIdle());
}

TEST(DecodingTest, ALostStageEndsTheTextAndTheChainComesBack) {
  TestChain chain({.stages = 2, .page_count = 4096, .decodes = true});
  ASSERT_TRUE(chain.WaitReady());
  grpc::ClientContext context;
  const auto stub = chain.Stub(0);
  const auto reader = stub->Generate(&context, RequestOf(1, TestChain::Prompt(20, 1), 60'000));
  v1::DecodeGenerateResponse response;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(reader->Read(&response));
  chain.KillStage(1);
  while (reader->Read(&response)) EXPECT_FALSE(response.has_finished());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(chain.WaitFor([&chain] { return !chain.service(0).ready(); }));
  chain.StartStage(1);
  chain.ShareView();
  ASSERT_TRUE(chain.WaitReady());
  const std::vector<int32_t> prompt = TestChain::Prompt(40, 3);
  EXPECT_EQ(Generate(chain, RequestOf(2, prompt, 5)).Text(), TextOf(prompt, 5));
  EXPECT_TRUE(chain.WaitIdle());
}

TEST(OverlapTest, StepsAreAtHandWhereTheyAreComputedElsewhere) {
  const auto ahead = [](const std::string& overlap, const std::string& device,
                        const std::string& profile) {
    v1::Options options;
    options.set_overlap_schedule(overlap);
    options.set_device(device);
    options.set_timed_profile(profile);
    return SchedulingOfDecode(options, 100).planner.feeds_ahead;
  };
  EXPECT_FALSE(ahead("auto", "cpu", ""));
  EXPECT_TRUE(ahead("auto", "cuda:1", ""));
  EXPECT_TRUE(ahead("auto", "cpu", "profile.json"));
  EXPECT_TRUE(ahead("on", "cpu", ""));
  EXPECT_FALSE(ahead("off", "cuda", "profile.json"));
}

}  // namespace
}  // namespace baton::prefill
