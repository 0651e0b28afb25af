// A whole router whose workers say what they have to say by a relay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "services/router/testing/router_service_fixture.h"

namespace baton::router {
namespace {

using Relay = FakeBehaviour::Relay;
using ::testing::HasSubstr;

class RelayTest : public RouterServiceTest {
 protected:
  void JoinChain(const FakeBehaviour& behaviour) {
    Add(TestColocated("c0", 0, 1), behaviour);
    JoinAll();
  }
  // Until a request goes by the relay, which the first one opens: its answer.
  Answer GenerateRelayed(FakeRecord& record, const v1::GenerateRequest& request) {
    const int before = record.Get().relayed_streams;
    Answer answer;
    while (record.Get().relayed_streams == before) answer = Generate(request);
    return answer;
  }
  void ExpectWhole(const Answer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.text, "hello world");
    EXPECT_EQ(answer.token_ids, hello_);
    EXPECT_EQ(answer.finished_count, 1);
    EXPECT_EQ(answer.finished.attempts(), 1);
  }
};

TEST_F(RelayTest, BringsAWholeAnswerOfADecodeService) {
  JoinPair({}, {.tokens = hello_, .relay = Relay::kWhole});
  ExpectWhole(GenerateRelayed(Decode(), Request()));
  ExpectWhole(GenerateRelayed(Decode(), Request()));
}

TEST_F(RelayTest, BringsAWholeAnswerOfAColocatedChain) {
  JoinChain({.tokens = hello_, .relay = Relay::kWhole});
  ExpectWhole(GenerateRelayed(workers_[0]->record(), Request()));
}

TEST_F(RelayTest, IsNotTakenWhereThePromptsTokensAreAskedFor) {
  JoinChain({.tokens = hello_, .relay = Relay::kWhole});
  GenerateRelayed(workers_[0]->record(), Request());
  const int before = workers_[0]->record().Get().relayed_streams;
  v1::GenerateRequest request = Request();
  request.set_text("hello world");
  request.mutable_sampling()->set_prompt_logprobs(true);
  EXPECT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(workers_[0]->record().Get().relayed_streams, before);
}

TEST_F(RelayTest, AWorkerThatHasNoneAnswersByTheStream) {
  JoinPair({}, {.tokens = hello_});
  for (int i = 0; i < 3; ++i) ExpectWhole(Generate(Request()));
  EXPECT_EQ(Decode().Get().relayed_streams, 0);
}

TEST_F(RelayTest, AFailureSaysWhatTheWorkerSays) {
  JoinPair({}, {.tokens = hello_,
                .end = rpc::ToGrpc(WithLeg(absl::InternalError("no more"), "decode", "d0")),
                .relay = Relay::kWhole});
  const Answer answer = GenerateRelayed(Decode(), Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("no more"));
  EXPECT_EQ(LegOf(rpc::FromGrpc(answer.status)), "decode");
  EXPECT_EQ(InstanceOf(rpc::FromGrpc(answer.status)), "d0");
}

// With its trace and what else the call itself would have carried.
TEST_F(RelayTest, BringsAChainTheWholeRequest) {
  JoinChain({.tokens = hello_, .relay = Relay::kWhole});
  GenerateRelayed(workers_[0]->record(), Request());
  const auto seen = workers_[0]->record().Get().generations;
  EXPECT_EQ(seen.back().fixed_prompt_token_ids().size(),
            seen.front().fixed_prompt_token_ids().size());
  EXPECT_GT(seen.back().timeout_ms(), 0);
  EXPECT_NE(seen.back().router_incarnation(), 0);
}

TEST_F(RelayTest, AClientThatGoesCancelsItsOwnRequestAlone) {
  JoinPair({}, {.tokens = hello_, .hang_after_tokens = true, .relay = Relay::kWhole});
  for (int streams = 1; Decode().Get().relayed_streams < 2; ++streams) {
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, Request());
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    context.TryCancel();
    Decode().Await([&](const auto& seen) { return seen.streams_cancelled >= streams; });
  }
}

// What it has not brought is lost, so the text goes on elsewhere, or ends.
TEST_F(RelayTest, ItsEndEndsWhatItCarries) {
  JoinPair({}, {.tokens = hello_, .relay = Relay::kBreaks});
  const Answer answer = GenerateRelayed(Decode(), Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("relay"));
  EXPECT_EQ(LegOf(rpc::FromGrpc(answer.status)), "decode");
  Decode().Await([](const auto& seen) { return seen.streams_cancelled >= 1; });
}

TEST_F(RelayTest, AnEventThatIsNoneIsTheWorkersError) {
  JoinPair({}, {.tokens = hello_, .relay = Relay::kMalformed});
  const Answer answer = GenerateRelayed(Decode(), Request());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("neither token nor end"));
  EXPECT_EQ(InstanceOf(rpc::FromGrpc(answer.status)), "d0");
}

}  // namespace
}  // namespace baton::router
