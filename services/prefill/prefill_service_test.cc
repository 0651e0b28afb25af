// Real services, links and data planes with fake executors: every byte of KV that a decode service
// gets is compared, whatever is aborted, cancelled or dies on the way.
#include "services/prefill/prefill_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/rpc/convert.h"
#include "services/prefill/testing/gate.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

class ChainLengthTest : public testing::TestWithParam<int> {};

TEST_P(ChainLengthTest, DeliversEveryByteOnceAndTheFirstToken) {
  const int stages = GetParam();
  TestChain chain({.stages = stages});
  ASSERT_TRUE(chain.WaitReady());
  struct Case {
    std::vector<int32_t> prompt;
    Ticket ticket;
    v1::PrefillReport report;
    std::future<absl::Status> status;
  };
  std::vector<Case> cases;
  for (const int tokens : {1, 16, 33, 300, 31, 500, 64, 7, 129}) {
    cases.push_back({TestChain::Prompt(tokens, tokens), chain.decode().Grant(tokens), {}, {}});
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].status = std::async(std::launch::async, [&chain, &one = cases[i], i] {
      return chain.Run(i + 1, one.prompt, one.ticket, &one.report);
    });
  }
  for (Case& one : cases) {
    SCOPED_TRACE(testing::Message() << one.prompt.size() << " tokens");
    const absl::Status status = one.status.get();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(chain.decode().Check(one.ticket, one.prompt, stages), "");
    size_t tokens = 0;
    for (const v1::ChunkReport& chunk : one.report.chunks()) {
      EXPECT_EQ(chunk.token_begin(), static_cast<int>(tokens));
      EXPECT_EQ(chunk.stages_size(), stages);
      tokens += static_cast<size_t>(chunk.token_count());
    }
    EXPECT_EQ(tokens, one.prompt.size());
    const int64_t page_bytes =
        int64_t{kFakeLayers} * 2 * kFakeKvHeads * kFakePageSize * kFakeHeadDim * 4;
    EXPECT_EQ(one.report.kv_bytes(), page_bytes * one.ticket.prompt_pages);
    EXPECT_GT(one.report.compute_us(), 0);
  }
  EXPECT_TRUE(chain.WaitIdle());
  std::set<uint64_t> writers;
  for (int rank = 0; rank < stages; ++rank) {
    writers.insert(chain.instance(rank).incarnation);
    EXPECT_TRUE(chain.service(rank).Liveness().ok());
  }
  EXPECT_TRUE(chain.decode().HeardFrom(writers));
}

// It is opened when a ticket first names decode.
TEST_P(ChainLengthTest, KvWaitsForAnEndpointThatIsBeingOpened) {
  TestChain chain({.stages = GetParam()});
  ASSERT_TRUE(chain.WaitReady());
  const int last = GetParam() - 1;
  chain.LoseDecode(last, /*opening=*/true);
  const auto prompt = TestChain::Prompt(70, 5);
  const Ticket ticket = chain.decode().Grant(70);
  auto status = std::async(std::launch::async, [&] { return chain.Run(1, prompt, ticket); });
  EXPECT_EQ(status.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  chain.FindDecode(last);
  EXPECT_TRUE(status.get().ok());
  EXPECT_EQ(chain.decode().Check(ticket, prompt, GetParam()), "");
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(ChainLengthTest, ADecodeServiceThatAStageCannotConnectToIsNamed) {
  TestChain chain({.stages = GetParam()});
  ASSERT_TRUE(chain.WaitReady());
  chain.LoseDecode(GetParam() - 1, /*opening=*/false);
  const auto prompt = TestChain::Prompt(70, 5);
  const absl::Status status = chain.Run(1, prompt, chain.decode().Grant(70));
  EXPECT_TRUE(absl::IsUnavailable(status) && IsUnconnected(status)) << status;
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "decode-0");
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(ChainLengthTest, TellsThePromptsLogprobs) {
  const int stages = GetParam();
  TestChain chain({.stages = stages});
  ASSERT_TRUE(chain.WaitReady());
  for (const int tokens : {1, 2, 32, 33, 100}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    auto prompt = TestChain::Prompt(tokens, 5);
    if (tokens > 40) {  // Likely ones within a chunk and on the edge of two.
      for (const size_t at : {7, 32, 33, 64}) prompt[at] = FakeFirstToken(prompt[at - 1], at);
    }
    const Ticket ticket = chain.decode().Grant(tokens);
    v1::StartRequest request = TestChain::Request(static_cast<uint64_t>(tokens), prompt, ticket);
    request.mutable_sampling()->set_prompt_logprobs(true);
    request.mutable_sampling()->set_top_logprobs(2);
    v1::StartResponse response;
    const absl::Status status = chain.Send(request, response);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(response.prompt_tokens_size(), tokens - 1);
    for (int i = 1; i < tokens; ++i) {
      const v1::PromptToken& told = response.prompt_tokens(i - 1);
      const int likely = FakeFirstToken(prompt[static_cast<size_t>(i) - 1], i);
      EXPECT_EQ(told.token_id(), prompt[static_cast<size_t>(i)]);
      EXPECT_NEAR(told.logprobs().logprob(), told.token_id() == likely ? 0 : -30, 1e-3) << i;
      ASSERT_EQ(told.logprobs().top_size(), 2);
      EXPECT_EQ(told.logprobs().top(0).token_id(), likely);
    }
    EXPECT_EQ(chain.decode().Check(ticket, prompt, stages), "");
  }
  EXPECT_TRUE(chain.WaitIdle());
}

TEST_P(ChainLengthTest, RepetitionPenaltyOfTheFirstTokenLooksAtThePrompt) {
  const int stages = GetParam();
  TestChain chain({.stages = stages});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(50, 5);
  const int likely = FakeFirstToken(prompt.back(), 50);
  for (const bool repeated : {false, true}) {
    auto tokens = prompt;
    tokens[3] = repeated ? likely : (likely + 1) % kFakeVocab;
    for (int32_t& token : std::span(tokens).first(49)) {
      if (!repeated && token == likely) token = (likely + 1) % kFakeVocab;
    }
    const Ticket ticket = chain.decode().Grant(50);
    v1::StartRequest request = TestChain::Request(repeated ? 2 : 1, tokens, ticket);
    // Halved, the likely token's logit of 30 is beaten by one that was raised to 20.
    request.mutable_sampling()->set_repetition_penalty(2);
    v1::LogitBias& bias = *request.mutable_sampling()->add_logit_bias();
    const int other = [&] {
      int id = 0;
      while (id == likely || std::count(tokens.begin(), tokens.end(), id) > 0) ++id;
      return id;
    }();
    bias.set_token_id(other);
    bias.set_bias(20);
    const absl::Status status = chain.Send(request);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(chain.decode().FirstToken(ticket), repeated ? other : likely);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ChainLengthTest, testing::Values(1, 2, 3));

TEST(PrefillServiceTest, OneCreditAndWholePromptsWork) {
  TestChain chain({.stages = 3, .chunk_tokens = -1, .page_count = 64, .credits = 1});
  ASSERT_TRUE(chain.WaitReady());
  for (const int tokens : {200, 17, 1000}) {
    const auto prompt = TestChain::Prompt(tokens, 3);
    const Ticket ticket = chain.decode().Grant(tokens);
    v1::PrefillReport report;
    ASSERT_TRUE(chain.Run(static_cast<uint64_t>(tokens), prompt, ticket, &report).ok());
    EXPECT_EQ(report.chunks_size(), 1);
    EXPECT_EQ(chain.decode().Check(ticket, prompt, 3), "");
  }
}

TEST(PrefillServiceTest, CostsThatEveryStageHasMeasuredAreKnownAtOnce) {
  const KnownCost cost = {{.overhead_us = 500, .token_us = 50}, 0.1};
  for (const int measured : {2, 3}) {
    TestChain::Settings settings;
    settings.stages = 3;
    for (int rank = 0; rank < measured; ++rank) settings.measured[rank] = cost;
    TestChain chain(settings);
    ASSERT_TRUE(chain.WaitReady());
    // Stage 0 tells of it a few times a second; a short time is enough for both verdicts.
    const auto known = [&chain] {
      const std::string metrics = chain.Scrape(0);
      const size_t at = metrics.find("\nbaton_plan_costs_known{");
      return at != std::string::npos && metrics[metrics.find('\n', at + 1) - 1] == '1';
    };
    if (measured == 3) {
      EXPECT_TRUE(chain.WaitFor(known));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      EXPECT_FALSE(known());
    }
  }
}

TEST(PrefillServiceTest, AnAbortAnswersAtOnceAndLeavesNothing) {
  Gate gate;
  TestChain chain({.stages = 2, .before_forward = {{1, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(400, 1);
  const Ticket ticket = chain.decode().Grant(400);
  auto running = std::async(std::launch::async, [&] { return chain.Run(1, prompt, ticket); });
  gate.WaitEntered();
  EXPECT_EQ(chain.Run(1, prompt, ticket).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(chain.Abort(1).ok());
  EXPECT_TRUE(chain.Abort(99).ok());
  EXPECT_EQ(running.get().code(), absl::StatusCode::kCancelled);
  EXPECT_NE(chain.service(0).load().free_pages(), 64);  // stage 1 still computes it
  gate.Open();
  EXPECT_TRUE(chain.WaitIdle());
  const Ticket next = chain.decode().Grant(400);
  ASSERT_TRUE(chain.Run(2, prompt, next).ok());
  EXPECT_EQ(chain.decode().Check(next, prompt, 2), "");
}

TEST(PrefillServiceTest, ACallThatIsCancelledIsAborted) {
  Gate gate;
  TestChain chain({.stages = 2, .before_forward = {{0, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(100, 1);
  const v1::StartRequest request = TestChain::Request(1, prompt, chain.decode().Grant(100));
  grpc::ClientContext context;
  auto running = std::async(std::launch::async, [&] {
    v1::StartResponse response;
    return chain.Stub(0)->Start(&context, request, &response).error_code();
  });
  gate.WaitEntered();
  context.TryCancel();
  EXPECT_EQ(running.get(), grpc::StatusCode::CANCELLED);
  gate.Open();
  EXPECT_TRUE(chain.WaitIdle());
}

TEST(PrefillServiceTest, ADeadlineEndsARequest) {
  Gate gate;
  TestChain chain({.stages = 1, .before_forward = {{0, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(100, 1);
  const absl::Status status = chain.Run(1, prompt, chain.decode().Grant(100), nullptr, 20);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  gate.Open();
  EXPECT_TRUE(chain.WaitIdle());
}

TEST(PrefillServiceTest, ALostDecodeFailsItsRequestsAlone) {
  TestChain chain({.stages = 2});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(200, 1);
  Ticket lost = chain.decode().Grant(200);
  lost.decode = {"decode-9", 9};
  const Ticket ticket = chain.decode().Grant(200);
  auto failing = std::async(std::launch::async, [&] { return chain.Run(1, prompt, lost); });
  auto running = std::async(std::launch::async, [&] { return chain.Run(2, prompt, ticket); });
  const absl::Status status = failing.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "decode-9");
  ASSERT_TRUE(running.get().ok());
  EXPECT_EQ(chain.decode().Check(ticket, prompt, 2), "");
  EXPECT_TRUE(chain.WaitIdle());
  EXPECT_TRUE(chain.service(0).ready());
}

TEST(PrefillServiceTest, DrainRefusesNewRequestsAndWaitsForTheOthers) {
  Gate gate;
  TestChain chain({.stages = 2, .before_forward = {{1, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(100, 1);
  const Ticket ticket = chain.decode().Grant(100);
  auto running = std::async(std::launch::async, [&] { return chain.Run(1, prompt, ticket); });
  gate.WaitEntered();
  EXPECT_FALSE(chain.service(0).Drain(0));
  EXPECT_EQ(chain.Run(2, prompt, chain.decode().Grant(100)).code(), absl::StatusCode::kUnavailable);
  gate.Open();
  EXPECT_TRUE(chain.service(0).Drain(20'000));
  EXPECT_TRUE(running.get().ok());
  EXPECT_FALSE(chain.service(0).ready());
}

TEST(PrefillServiceTest, AServiceThatCannotListenIsRegisteredNowhere) {
  TestChain chain({.stages = 1});
  ThreadedExecutor executor(std::make_unique<FakeModel>(0, kFakeLayers, 64), "prefill.compute");
  Metrics metrics(MetricsIdentity{MetricRole::kPrefill, "fake", "prefill-9", 0});
  FakePeers peers;
  const auto plane = DataPlane::Create({}).value();
  PrefillOptions options;
  options.self = {"prefill-9", 9};
  options.chain_id = "chain-9";
  options.planner.chunk_tokens = 32;
  options.planner.max_context_tokens = 64 * kFakePageSize;
  options.grpc_port = chain.service(0).grpc_port();
  const PrefillService::Parts parts{&executor, plane.get(), &peers, &metrics};
  EXPECT_EQ(PrefillService::Create(options, parts).status().code(), absl::StatusCode::kUnavailable);
  options.grpc_port = 0;
  const auto service = PrefillService::Create(options, parts);
  EXPECT_TRUE(service.ok()) << service.status();
  (*service)->Stop();
  plane->Shutdown();
}

TEST(PrefillServiceTest, RefusesBadFields) {
  TestChain chain({.stages = 2});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(20, 1);
  const v1::StartRequest good = TestChain::Request(1, prompt, chain.decode().Grant(20));
  const auto field_of = [&](const std::function<void(v1::StartRequest&)>& damage) {
    v1::StartRequest request = good;
    damage(request);
    const absl::Status status = chain.Send(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(LegOf(status), "prefill");
    return FieldOf(status).value_or("");
  };
  using R = v1::StartRequest;
  EXPECT_EQ(field_of([](R& r) { r.clear_fixed_prompt_token_ids(); }), "fixed_prompt_token_ids");
  EXPECT_EQ(field_of([](R& r) {
              r.mutable_sampling()->set_prompt_logprobs(true);
              r.mutable_sampling()->set_top_logprobs(21);
            }),
            "sampling.top_logprobs");
  EXPECT_EQ(field_of([](R& r) { r.set_fixed_prompt_token_ids(3, kFakeVocab); }),
            "fixed_prompt_token_ids");
  EXPECT_EQ(field_of([](R& r) { r.set_fixed_prompt_token_ids(3, -1); }), "fixed_prompt_token_ids");
  EXPECT_EQ(
      field_of([](R& r) { r.mutable_fixed_prompt_token_ids()->Resize(64 * kFakePageSize + 1, 1); }),
      "fixed_prompt_token_ids");
  EXPECT_EQ(field_of([](R& r) { r.mutable_sampling()->set_top_p(0); }), "sampling.top_p");
  EXPECT_EQ(field_of([](R& r) { r.set_timeout_ms(0); }), "timeout_ms");
  EXPECT_EQ(field_of([](R& r) { r.set_timeout_ms(kMaxTimeoutMs + 1); }), "timeout_ms");
  EXPECT_NE(field_of([](R& r) { r.mutable_ticket()->set_generation(0); }), "");
  EXPECT_EQ(field_of([](R& r) { r.mutable_ticket()->set_prompt_tokens(21); }), "ticket");
  EXPECT_EQ(chain.Send(good, nullptr, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(chain.Send(good).ok());
}

}  // namespace
}  // namespace baton::prefill
