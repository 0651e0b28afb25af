#include "services/router/router_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "services/router/testing/router_service_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

TEST_F(RouterServiceTest, StreamsAWholeAnswer) {
  JoinPair({}, {.tokens = hello_});
  const Answer answer = Generate(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.token_ids, hello_);
  EXPECT_EQ(answer.finished_count, 1);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), static_cast<int>(hello_.size()));
  EXPECT_EQ(answer.finished.attempts(), 1);
  EXPECT_EQ(answer.finished.prefill_chain(), "c0");
  EXPECT_EQ(answer.finished.decode_instance(), "d0");
  EXPECT_EQ(answer.finished.timing().prefill().chunks_size(), 1);
  EXPECT_GT(answer.finished.timing().ttft_us(), 0);

  const FakeRecord::Seen decode = Decode().Get();
  const FakeRecord::Seen prefill = Prefill().Get();
  ASSERT_THAT(decode.reserves, SizeIs(1));
  ASSERT_THAT(prefill.starts, SizeIs(1));
  const v1::SamplingParams& sampling = decode.reserves[0].sampling();
  EXPECT_TRUE(sampling.has_seed());
  EXPECT_EQ(sampling.max_tokens(), 50);
  EXPECT_EQ(prefill.starts[0].sampling().seed(), sampling.seed());
  EXPECT_EQ(prefill.starts[0].fixed_prompt_token_ids_size(),
            decode.reserves[0].prompt_token_ids_size());
  EXPECT_EQ(decode.reserves[0].writers_size(), 1);
  EXPECT_EQ(prefill.starts[0].ticket().generation(), 1);
}

TEST_F(RouterServiceTest, AStopStringEndsTheAnswer) {
  JoinPair({}, {.tokens = hello_, .hang_after_tokens = true});
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->add_stop("wor");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello ");
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.finished.matched_stop(), "wor");
  Decode().Await([](const auto& seen) { return seen.decode_aborts.size() == 1; });
}

// The first thing in the mailbox is the request itself; what follows is the answer's.
TEST_F(RouterServiceTest, AFullMailboxLosesNothingOfAnAnswer) {
  JoinPair({}, {.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.set_timeout_ms(5000);
  for (int message = 2; message <= 7; ++message) {
    ASSERT_TRUE(ArmFailpoints(absl::StrCat("router.mailbox=error@", message)).ok());
    const Answer answer = Generate(request);
    EXPECT_TRUE(answer.status.ok()) << message << ": " << answer.status.error_message();
    EXPECT_EQ(answer.token_ids, hello_) << message;
  }
  ASSERT_TRUE(ArmFailpoints("").ok());
}

// gRPC holds 64 KiB for a client that does not read, unless it measures that the connection takes
// more at once; what comes then waits at the router.
TEST_F(RouterServiceTest, AClientThatReadsLateGetsSeveralTokensInOneMessage) {
  const std::vector<int32_t> tokens(900, hello_[0]);
  JoinPair({}, {.tokens = tokens});
  v1::GenerateRequest request = Request(std::string(120, 'x'));
  request.mutable_sampling()->set_max_tokens(900);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto client = v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(router_->grpc_port()),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  auto reader = client->Generate(&context, request);
  std::string told;
  while (!absl::StrContains(told, "} 900\n")) {
    told = router_->gateway().ScrapeMetrics();
    told = told.substr(told.find("\nbaton_generation_tokens_total{"));
    told = told.substr(0, told.find('\n', 1) + 1);
  }
  int messages = 0;
  std::vector<int32_t> read;
  for (v1::GenerateResponse message; reader->Read(&message);) {
    messages += message.has_tokens() ? 1 : 0;
    read.insert(read.end(), message.tokens().token_ids().begin(),
                message.tokens().token_ids().end());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(read, tokens);
  EXPECT_LT(messages, 900);
}

TEST_F(RouterServiceTest, ADecodeThatFailsInMidStreamIsNamed) {
  JoinPair({.start_hangs = true}, {.tokens = hello_, .end = kGone});
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.token_ids, hello_);
  EXPECT_EQ(answer.finished_count, 0);
  const absl::Status status = rpc::FromGrpc(answer.status);
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "d0");
  // Decode may fail before Start has reached the stage: its call is then cancelled on the way.
  Prefill().Await([](const auto& seen) {
    return seen.prefill_aborts.size() == 1 &&
           seen.starts_cancelled == static_cast<int>(seen.starts.size());
  });
}

TEST_F(RouterServiceTest, AFailedPrefillIsRetriedOnAnotherChainWithTheSameSeed) {
  Add(TestStage("c0", 0, 1), {.start = kGone});
  Add(TestDecode("d0"), {.hang_after_tokens = true});
  Add(TestStage("c1", 0, 1), {});
  Add(TestDecode("d1"), {.tokens = hello_});
  JoinAll();
  const Answer answer = Generate(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.finished.attempts(), 2);
  EXPECT_EQ(answer.finished.prefill_chain(), "c1");
  EXPECT_EQ(answer.finished.decode_instance(), "d1");
  EXPECT_EQ(Decode(0).Get().reserves.at(0).sampling().seed(),
            Decode(1).Get().reserves.at(0).sampling().seed());
  Decode(0).Await([](const auto& seen) { return seen.decode_aborts.size() == 1; });
  EXPECT_THAT(router_->gateway().ScrapeMetrics(), HasSubstr("baton_request_retries_total"));
}

TEST_F(RouterServiceTest, ATextGoesOnOnAnotherPair) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = {hello_[0], hello_[1], hello_[2]}, .end = kGone});
  Add(TestStage("c1", 0, 1), {});
  Add(TestDecode("d1"), {.tokens = {hello_.begin() + 2, hello_.end()}});
  JoinAll();
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_logprobs(true);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.token_ids, hello_);
  EXPECT_EQ(answer.finished.resumes(), 1);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), static_cast<int>(hello_.size()));
  const v1::ReserveRequest first = Decode(0).Get().reserves.at(0);
  const v1::ReserveRequest second = Decode(1).Get().reserves.at(0);
  EXPECT_EQ(first.sampling().drawn_tokens(), 0);
  EXPECT_EQ(second.sampling().drawn_tokens(), 2);
  EXPECT_EQ(second.sampling().max_tokens(), first.sampling().max_tokens());
  EXPECT_EQ(second.sampling().seed(), first.sampling().seed());
  const v1::StartRequest start = Prefill(1).Get().starts.at(0);
  std::vector<int32_t> read(first.prompt_token_ids().begin(), first.prompt_token_ids().end());
  read.insert(read.end(), hello_.begin(), hello_.begin() + 2);
  EXPECT_THAT(start.fixed_prompt_token_ids(), ElementsAreArray(read));
  EXPECT_THAT(second.prompt_token_ids(), ElementsAreArray(read));
  EXPECT_EQ(start.sampling().drawn_tokens(), 2);
}

TEST_F(RouterServiceTest, AnotherTextDoesNotGoOn) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = {hello_[0], hello_[1]}, .end = kGone});
  Add(TestStage("c1", 0, 1), {});
  Add(TestDecode("d1"), {.tokens = hello_});
  JoinAll();
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(answer.token_ids, ElementsAreArray(hello_.begin(), hello_.begin() + 2));
  EXPECT_EQ(answer.finished_count, 0);
}

TEST_F(RouterServiceTest, ADeadWorkerIsReportedWithWhatToDo) {
  JoinPair({}, {.tokens = hello_});
  workers_[1]->Kill();
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("send the request again"));
  EXPECT_EQ(InstanceOf(rpc::FromGrpc(answer.status)), "d0");
}

TEST_F(RouterServiceTest, AClientThatCancelsEndsBothLegs) {
  JoinPair({.start_hangs = true}, {.hang_after_tokens = true});
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request());
  Prefill().Await([](const auto& seen) { return seen.starts.size() == 1; });
  context.TryCancel();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::CANCELLED);
  Decode().Await([](const auto& seen) { return seen.decode_aborts.size() == 1; });
  Prefill().Await([](const auto& seen) {
    return seen.prefill_aborts.size() == 1 && seen.starts_cancelled == 1;
  });
}

TEST_F(RouterServiceTest, ADeadlineEndsBothLegs) {
  JoinPair({.start_hangs = true}, {.hang_after_tokens = true});
  v1::GenerateRequest request = Request();
  request.set_timeout_ms(50);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  Decode().Await([](const auto& seen) { return seen.decode_aborts.size() == 1; });
}

TEST_F(RouterServiceTest, DuplicateIdsAreRefusedAndAbortEndsARequest) {
  JoinPair({.start_hangs = true}, {.tokens = hello_, .hang_after_tokens = true});
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request("mine"));
  Prefill().Await([](const auto& seen) { return seen.starts.size() == 1; });
  EXPECT_EQ(Generate(Request("mine")).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);

  const auto abort = [this](const std::string& id) {
    grpc::ClientContext abort_context;
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    return inference_->Abort(&abort_context, request, &response).error_code();
  };
  EXPECT_EQ(abort("other"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(abort("mine"), grpc::StatusCode::OK);
  const Answer answer = ReadAll(*reader);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_ABORT);
}

TEST_F(RouterServiceTest, ServesManyStreamsAtOnce) {
  constexpr int kStreams = 200;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 20; ++i) tokens.insert(tokens.end(), hello_.begin(), hello_.end());
  tokens.resize(50);
  JoinPair({}, {.tokens = tokens});
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kStreams; ++i) {
    calls.push_back(std::make_unique<Call>());
    calls.back()->reader = inference_->Generate(&calls.back()->context, Request());
  }
  for (const auto& call : calls) {
    const Answer answer = ReadAll(*call->reader);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.token_ids, tokens);
    EXPECT_EQ(answer.finished_count, 1);
  }
}

TEST_F(RouterServiceTest, WithoutWorkersItSaysWhatIsMissing) {
  const Answer answer = Generate(Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("no decode service is registered"));
  EXPECT_FALSE(router_->gateway().readiness().ready);
  EXPECT_TRUE(router_->gateway().alive());
}

TEST_F(RouterServiceTest, ABadRequestNamesItsField) {
  JoinPair({}, {.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_top_p(2);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(rpc::FromGrpc(answer.status)), "top_p");
  EXPECT_THAT(Decode().Get().reserves, SizeIs(0));
}

TEST_F(RouterServiceTest, AMismatchIsRefusedAtJoin) {
  JoinPair({}, {});
  WorkerInfo other = TestDecode("d1");
  other.fingerprint.dtype = "bfloat16";
  FakeWorker worker(other);
  const grpc::Status status = worker.Register(*cluster_);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("d1 has bfloat16"));
  grpc::ClientContext context;
  v1::ListResponse list;
  ASSERT_TRUE(cluster_->List(&context, {}, &list).ok());
  EXPECT_EQ(list.workers_size(), 2);
}

TEST_F(RouterServiceTest, AReplacedWorkerEndsOnlyItsOwnRequests) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = hello_, .hang_after_tokens = true});
  for (const auto& worker : workers_) ASSERT_TRUE(worker->Register(*cluster_).ok());
  for (const size_t i : {0, 1, 0, 1}) ASSERT_TRUE(workers_[i]->Beat().ok());
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request());
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  WorkerInfo again = TestDecode("d0");
  again.instance.incarnation = 2;
  Add(again, {.tokens = hello_});
  EXPECT_EQ(workers_[2]->Register(*cluster_).error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "the first one lives";
  workers_[1]->BreakLease();  // As a process that dies does.
  // A worker that is refused asks again.
  bool registered = false;
  for (int i = 0; i < 10'000 && !registered; ++i)
    registered = workers_[2]->Register(*cluster_).ok();
  ASSERT_TRUE(registered);
  const Answer answer = ReadAll(*reader);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("new incarnation"));
  for (const size_t i : {0, 2, 0, 2}) ASSERT_TRUE(workers_[i]->Beat().ok());
  EXPECT_EQ(Generate(Request()).text, "hello world");
}

TEST_F(RouterServiceTest, StoppingRefusesNewRequestsAndEndsOldOnes) {
  JoinPair({.start_hangs = true}, {.tokens = hello_, .hang_after_tokens = true});
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request());
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  router_->BeginStop();
  EXPECT_FALSE(router_->gateway().readiness().ready);
  EXPECT_EQ(Generate(Request()).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  std::thread stopper([this] { router_->Stop(/*grace_ms=*/1); });
  const Answer answer = ReadAll(*reader);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("shutting down"));
  stopper.join();
  EXPECT_THAT(Decode().Get().decode_aborts, SizeIs(1));
}

TEST_F(RouterServiceTest, AnApiKeyIsAskedForIfOneIsSet) {
  auto tokenizer = LoadTokenizer();
  RouterConfig config = router_->config();
  config.options.set_api_key("secret");
  auto chat = MakeChatTemplate("auto", *tokenizer);
  ASSERT_TRUE(chat.ok());
  const auto guarded = RouterService::Start(config, std::move(tokenizer), *std::move(chat));
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string((*guarded)->grpc_port()), grpc::InsecureChannelCredentials()));
  const auto call = [&stub](const std::string& authorization) {
    grpc::ClientContext info_context;
    grpc::ClientContext generate_context;
    if (!authorization.empty()) {
      info_context.AddMetadata("authorization", authorization);
      generate_context.AddMetadata("authorization", authorization);
    }
    v1::GetModelInfoResponse info;
    auto reader = stub->Generate(&generate_context, Request());
    return std::make_pair(stub->GetModelInfo(&info_context, {}, &info).error_code(),
                          ReadAll(*reader).status.error_code());
  };
  constexpr auto kRefused = grpc::StatusCode::UNAUTHENTICATED;
  for (const std::string wrong : {"", "Bearer", "Bearer secreT", "Bearer secret1", "secret"}) {
    EXPECT_EQ(call(wrong), std::make_pair(kRefused, kRefused)) << wrong;
  }
  EXPECT_EQ(call("Bearer secret"),
            std::make_pair(grpc::StatusCode::OK, grpc::StatusCode::UNAVAILABLE));
}

TEST_F(RouterServiceTest, TokenizesAndDescribesTheModel) {
  grpc::ClientContext info_context;
  v1::GetModelInfoResponse info;
  ASSERT_TRUE(inference_->GetModelInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.served_model_name(), "tiny");
  EXPECT_EQ(info.max_context_tokens(), 1024);
  grpc::ClientContext tokenize_context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hello world");
  v1::TokenizeResponse ids;
  ASSERT_TRUE(inference_->Tokenize(&tokenize_context, tokenize, &ids).ok());
  EXPECT_EQ(std::vector<int32_t>(ids.token_ids().begin(), ids.token_ids().end()), hello_);
  grpc::ClientContext detokenize_context;
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(&detokenize_context, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hello world");
}

// The test's chain and decode service hold 1024 tokens.
TEST_F(RouterServiceTest, WhatFitsNoPairNamesTheFieldAndTheNumbers) {
  JoinPair({}, {.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_max_tokens(1020);
  request.set_text("hello hello hello hello hello hello hello hello");
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("max_tokens: "));
  EXPECT_THAT(answer.status.error_message(), HasSubstr("ask for at most"));
}

TEST_F(RouterServiceTest, AParallelCallMayHaveTheSameTracingId) {
  JoinPair({}, {.tokens = hello_, .hang_after_tokens = true});
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->AddMetadata("x-request-id", "trace-7");
    readers.push_back(inference_->Generate(contexts.back().get(), Request()));
    v1::GenerateResponse message;
    ASSERT_TRUE(readers.back()->Read(&message)) << readers.back()->Finish().error_message();
    EXPECT_THAT(message.request_id(), testing::StartsWith("req-trace-7-"));
  }
  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) (void)reader->Finish();
}

TEST_F(RouterServiceTest, ATracingIdThatIsNoIdFailsNothing) {
  JoinPair({}, {.tokens = hello_});
  for (const std::string& id : {std::string(3000, 'a'), std::string("a b"), std::string("")}) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", id);
    auto reader = inference_->Generate(&context, Request());
    EXPECT_TRUE(ReadAll(*reader).status.ok()) << id;
  }
}

}  // namespace
}  // namespace baton::router
