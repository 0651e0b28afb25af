// A whole router with colocated chains: real gRPC, and a fake stage 0 that streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "services/router/testing/router_service_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

class RouterColocatedTest : public RouterServiceTest {
 protected:
  void JoinChain(const FakeBehaviour& behaviour) {
    Add(TestColocated("c0", 0, 1), behaviour);
    JoinAll();
  }
  FakeRecord& Chain(size_t i = 0) { return workers_[i]->record(); }
};

TEST_F(RouterColocatedTest, StreamsAWholeAnswer) {
  JoinChain({.tokens = hello_});
  const Answer answer = Generate(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.token_ids, hello_);
  EXPECT_EQ(answer.finished_count, 1);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), static_cast<int>(hello_.size()));
  EXPECT_EQ(answer.finished.attempts(), 1);
  EXPECT_EQ(answer.finished.prefill_chain(), "c0");
  EXPECT_EQ(answer.finished.decode_instance(), "c0-0");
  EXPECT_EQ(answer.finished.timing().prefill().chunks_size(), 1);
  EXPECT_EQ(answer.finished.timing().reserve_us(), 0);
  EXPECT_GT(answer.finished.timing().ttft_us(), 0);

  const FakeRecord::Seen seen = Chain().Get();
  EXPECT_THAT(seen.reserves, IsEmpty());
  EXPECT_THAT(seen.starts, IsEmpty());
  ASSERT_THAT(seen.generations, SizeIs(1));
  EXPECT_FALSE(seen.generations[0].has_ticket());
  EXPECT_TRUE(seen.generations[0].sampling().has_seed());
  EXPECT_EQ(seen.generations[0].sampling().max_tokens(), 50);
  EXPECT_GT(seen.generations[0].timeout_ms(), 0);
  EXPECT_GT(seen.generations[0].fixed_prompt_token_ids_size(), 0);
  EXPECT_THAT(seen.prefill_aborts, IsEmpty());
}

TEST_F(RouterColocatedTest, AReadyChainIsAReadyPair) {
  EXPECT_FALSE(router_->gateway().readiness().ready);
  JoinChain({.tokens = hello_});
  ASSERT_TRUE(Generate(Request()).status.ok());
  while (!router_->gateway().readiness().ready) std::this_thread::yield();
  std::string gauge;
  while (gauge.find("} 1\n") == std::string::npos) {
    gauge = router_->gateway().ScrapeMetrics();
    gauge = gauge.substr(gauge.find("\nbaton_ready_pairs{"));
    gauge = gauge.substr(0, gauge.find('\n', 1) + 1);
  }
  EXPECT_EQ(router_->gateway().largest_request_tokens(), 1024);
}

TEST_F(RouterColocatedTest, ThePromptsTokensComeWithTheirLogprobs) {
  JoinChain({.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.set_text("hello world");
  request.mutable_sampling()->set_prompt_logprobs(true);
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, request);
  int prompt_tokens = 0;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    prompt_tokens += message.prompt_logprobs().token_ids_size();
    if (!message.has_tokens()) continue;
    EXPECT_EQ(prompt_tokens, static_cast<int>(hello_.size()));
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(prompt_tokens, static_cast<int>(hello_.size()));
}

TEST_F(RouterColocatedTest, OtherTokensThanThePromptsAreTheChainsError) {
  JoinChain({.tokens = hello_, .wrong_prompt_ids = 1});
  v1::GenerateRequest request = Request();
  request.set_text("hello world");
  request.mutable_sampling()->set_prompt_logprobs(true);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("other tokens than the prompt's"));
  EXPECT_EQ(LegOf(rpc::FromGrpc(answer.status)), "prefill");
}

// Whether the chain decodes the one token that runs, or none.
TEST_F(RouterColocatedTest, APromptMayBeReadForItself) {
  for (const bool one_token : {false, true}) {
    workers_.clear();
    WorkerInfo chain = TestColocated(absl::StrCat("c", one_token), 0, 1);
    Add(chain, {.tokens = one_token ? std::vector<int32_t>{hello_[0]} : std::vector<int32_t>{}});
    JoinAll();
    v1::GenerateRequest request = Request();
    request.mutable_sampling()->set_max_tokens(0);
    const Answer answer = Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.text, "");
    EXPECT_THAT(answer.token_ids, IsEmpty());
    EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answer.finished.usage().completion_tokens(), 0);
    workers_[0]->Kill();
    (void)Generate(Request());  // It is in no pair from now on.
  }
}

TEST_F(RouterColocatedTest, AStopStringAbortsTheStream) {
  JoinChain({.tokens = hello_, .hang_after_tokens = true});
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->add_stop("wor");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello ");
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
  Chain().Await([](const auto& seen) {
    return seen.prefill_aborts.size() == 1 && seen.streams_cancelled == 1;
  });
  EXPECT_THAT(Chain().Get().decode_aborts, IsEmpty());
}

// The first thing in the mailbox is the request itself; what follows is the answer's.
TEST_F(RouterColocatedTest, AFullMailboxLosesNothingOfAnAnswer) {
  JoinChain({.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.set_timeout_ms(5000);
  for (int message = 2; message <= 6; ++message) {
    ASSERT_TRUE(ArmFailpoints(absl::StrCat("router.mailbox=error@", message)).ok());
    const Answer answer = Generate(request);
    EXPECT_TRUE(answer.status.ok()) << message << ": " << answer.status.error_message();
    EXPECT_EQ(answer.token_ids, hello_) << message;
  }
  ASSERT_TRUE(ArmFailpoints("").ok());
}

TEST_F(RouterColocatedTest, AStreamThatCannotBeginIsTriedElsewhereWithTheSameSeed) {
  Add(TestColocated("c0", 0, 1), {.start = kGone});
  Add(TestColocated("c1", 0, 1), {.tokens = hello_});
  JoinAll();
  for (int i = 0; i < 2; ++i) {  // One of them begins on c0.
    const Answer answer = Generate(Request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.text, "hello world");
    EXPECT_EQ(answer.finished.prefill_chain(), "c1");
  }
  const auto failed = Chain(0).Get().generations;
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].sampling().seed(), Chain(1).Get().generations.at(0).sampling().seed());
  Chain(0).Await([](const auto& seen) { return seen.prefill_aborts.size() == 1; });
}

TEST_F(RouterColocatedTest, AFailpointBreaksTheCall) {
  JoinChain({.tokens = hello_});
  ASSERT_TRUE(ArmFailpoints("router.start=error@1").ok());
  const Answer answer = Generate(Request());
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_FALSE(answer.status.ok());
  EXPECT_EQ(LegOf(rpc::FromGrpc(answer.status)), "prefill");
  EXPECT_THAT(Chain().Get().generations, IsEmpty());
}

TEST_F(RouterColocatedTest, AChainThatFailsInMidStreamIsNamed) {
  JoinChain({.tokens = hello_, .end = kGone});
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.token_ids, hello_);
  EXPECT_EQ(answer.finished_count, 0);
  const absl::Status status = rpc::FromGrpc(answer.status);
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "c0-0");
}

TEST_F(RouterColocatedTest, AClientThatCancelsEndsTheStream) {
  JoinChain({.start_hangs = true});
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request());
  Chain().Await([](const auto& seen) { return seen.generations.size() == 1; });
  context.TryCancel();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::CANCELLED);
  Chain().Await([](const auto& seen) {
    return seen.prefill_aborts.size() == 1 && seen.streams_cancelled == 1;
  });
}

TEST_F(RouterColocatedTest, ADeadlineEndsTheStream) {
  JoinChain({.start_hangs = true});
  v1::GenerateRequest request = Request();
  request.set_timeout_ms(50);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  Chain().Await([](const auto& seen) { return seen.prefill_aborts.size() == 1; });
}

TEST_F(RouterColocatedTest, ADeadChainIsReportedWithWhatToDo) {
  JoinChain({.tokens = hello_});
  workers_[0]->Kill();
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("Prefill.Generate"));
  EXPECT_THAT(answer.status.error_message(), HasSubstr("send the request again"));
}

TEST_F(RouterColocatedTest, ServesBesideAPair) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = hello_});
  Add(TestColocated("x0", 0, 1), {.tokens = hello_});
  JoinAll();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Generate(Request()).text, "hello world");
  EXPECT_THAT(Chain(2).Get().generations, SizeIs(2));
  EXPECT_THAT(Chain(1).Get().reserves, SizeIs(2));
}

TEST_F(RouterColocatedTest, AStageThatDoesNotAgreeIsRefusedAtJoin) {
  Add(TestColocated("c0", 0, 2), {});
  JoinAll();
  FakeWorker other(TestStage("c0", 1, 2));
  const grpc::Status status = other.Register(*cluster_);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("c0-1 has prefill, c0-0 has null"));
}

}  // namespace
}  // namespace baton::router
