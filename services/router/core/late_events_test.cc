// What comes late, twice, or in a phase that it does not belong to; and who is blamed for what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class LateEventsTest : public RouterCoreTest {
 protected:
  // The answer is complete, prefill's report is not there.
  void Settling(uint64_t call_id, FinishReason reason = FinishReason::kLength) {
    Decoding(call_id);
    Handle(DecodeEnded{reserve_.attempt_id, reason});
    ASSERT_THAT(actions_, IsEmpty());
  }
  bool Suspect(const std::string& id) const { return core_->membership().Find({id, 1})->suspect; }
};

TEST_F(LateEventsTest, ACompleteAnswerTakesNothingMoreFromDecode) {
  JoinOnePair();
  Settling(1, FinishReason::kStop);
  for (const Event& event :
       std::vector<Event>{TokenReceived{reserve_.attempt_id, {}},
                          DecodeEnded{reserve_.attempt_id, FinishReason::kLength},
                          DecodeEnded{reserve_.attempt_id, kBroken}, StopMatched{1},
                          ReserveReplied{reserve_.attempt_id, kBroken}}) {
    Handle(event);
    EXPECT_THAT(actions_, IsEmpty());
  }
  EXPECT_EQ(core_->load().decoding, 1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LateEventsTest, ACompleteAnswerIsNoTimeOutWhenTheDeadlineComesFirst) {
  JoinOnePair();
  Handle(CallSubmitted{1, "r1", 100, 4, now_us_ + 1000});
  reserve_ = Only<Reserve>();
  Answer();
  Handle(TokenReceived{reserve_.attempt_id, {}});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kLength});
  EXPECT_EQ(core_->NextDeadlineUs(), 1000);
  now_us_ = 999;
  Handle(Tick{});
  EXPECT_THAT(actions_, IsEmpty());
  now_us_ = 1000;
  Handle(Tick{});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
}

TEST_F(LateEventsTest, AbortOfACompleteAnswerLeavesItWhatItIs) {
  JoinOnePair();
  Settling(1);
  Handle(AbortCalled{5, "r1"});
  EXPECT_EQ(Only<ReplyAbort>().status, absl::OkStatus());
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
  Handle(AbortCalled{6, "r1"});
  EXPECT_TRUE(absl::IsNotFound(Only<ReplyAbort>().status));
  Handle(ClientGone{1});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(LateEventsTest, AStopStringBelongsToAnAnswerThatHasBegun) {
  JoinOnePair();
  Handle(StopMatched{9});
  EXPECT_THAT(actions_, IsEmpty()) << "nobody's";
  Prefilling(1);
  Handle(StopMatched{1});
  EXPECT_THAT(actions_, IsEmpty()) << "before the first token";
  Handle(TokenReceived{reserve_.attempt_id, {}});
  Handle(StopMatched{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<FinishCall>(), IsEmpty()) << "prefill's report is worth a moment";
  Handle(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(actions_, IsEmpty());
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  EXPECT_THAT(All<AbortDecode>(), IsEmpty());
}

TEST_F(LateEventsTest, WhatDecodeCallsAnAbortIsALengthToTheClient) {
  JoinOnePair();
  Settling(1, FinishReason::kAbort);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kLength);
}

TEST_F(LateEventsTest, OnlyTheStageThatIsNamedIsSuspected) {
  JoinOnePair();
  Prefilling(1);
  Handle(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", "c0-1")});
  EXPECT_TRUE(Suspect("c0-1"));
  EXPECT_FALSE(Suspect("c0-0"));
  EXPECT_FALSE(Suspect("d0"));
}

TEST_F(LateEventsTest, AStatusThatNamesNobodyBlamesStageZero) {
  JoinOnePair();
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, kBroken});
  EXPECT_TRUE(Suspect("c0-0"));
  EXPECT_FALSE(Suspect("c0-1"));
  EXPECT_FALSE(Suspect("d0"));
}

TEST_F(LateEventsTest, AnErrorThatIsNoDeathSuspectsNobody) {
  JoinOnePair();
  Prefilling(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::InternalError("NaN")});
  for (const char* id : {"c0-0", "c0-1", "d0"}) EXPECT_FALSE(Suspect(id)) << id;
}

TEST_F(LateEventsTest, WhatAnotherPairWouldAnswerTooIsNotAskedOfIt) {
  JoinTwoPairs();
  uint64_t call_id = 0;
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kOutOfRange,
        absl::StatusCode::kUnimplemented, absl::StatusCode::kDeadlineExceeded,
        absl::StatusCode::kUnauthenticated, absl::StatusCode::kPermissionDenied}) {
    Prefilling(++call_id);
    Handle(PrefillEnded{reserve_.attempt_id, absl::Status(code, "a test")});
    EXPECT_EQ(Only<FinishCall>().outcome.status().code(), code);
    EXPECT_EQ(Only<FinishCall>().attempts, 1);
  }
  Prefilling(++call_id);
  Handle(PrefillEnded{reserve_.attempt_id, absl::DataLossError("a test")});
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
}

TEST_F(LateEventsTest, NothingIsTriedAgainWhenTheTimeIsOver) {
  JoinTwoPairs();
  Prefilling(1);
  now_us_ = kDeadlineUs;
  Handle(PrefillEnded{reserve_.attempt_id, kBroken});
  EXPECT_EQ(Only<FinishCall>().attempts, 1);
}

TEST_F(LateEventsTest, EveryAttemptHasANameOfItsOwn) {
  JoinOnePair();
  Reserving(1);
  const uint64_t first = reserve_.attempt_id;
  Reserving(2);
  EXPECT_EQ(first, (kIncarnation << 32) + 1);
  EXPECT_EQ(reserve_.attempt_id, (kIncarnation << 32) + 2);
}

}  // namespace
}  // namespace baton::router
