// What clients, deadlines and the membership do to requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RouterCoreTest, AClientThatGoesAwayEndsBothLegsSilently) {
  JoinOnePair();
  Reserving(1);
  Handle(ClientGone{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(1));
  Prefilling(2);
  Handle(ClientGone{2});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(2));
  Decoding(3);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(ClientGone{3});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(1));
  Handle(ClientGone{3});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, AbortTellsTheClient) {
  JoinOnePair();
  Prefilling(1);
  Handle(AbortCalled{77, "r1"});
  EXPECT_EQ(Only<ReplyAbort>().rpc_id, 77);
  EXPECT_EQ(Only<ReplyAbort>().status, absl::OkStatus());
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kAbort);
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  Handle(AbortCalled{78, "r1"});
  EXPECT_EQ(Only<ReplyAbort>().status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, AStopStringEndsTheDecodeLeg) {
  JoinOnePair();
  Decoding(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(StopMatched{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishCall>().outcome, FinishReason::kStop);
  Handle(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, DuplicateIdsAreRefusedWhileTheFirstRuns) {
  JoinOnePair();
  Decoding(1);
  Request(2, "r1");
  EXPECT_EQ(Only<FinishCall>().call_id, 2);
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kAlreadyExists);
  Handle(ClientGone{1});
  Request(3, "r1");
  EXPECT_THAT(All<Reserve>(), SizeIs(1));
}

TEST_F(RouterCoreTest, TheNumberOfRequestsIsBounded) {
  Reset({.max_requests = 2});
  JoinOnePair();
  Request(1);
  Request(2);
  Request(3);
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(LegOf(status), "router");
  EXPECT_EQ(core_->load().in_flight, 2);
}

TEST_F(RouterCoreTest, WithoutAPairTheRefusalSaysWhatIsMissing) {
  Join({TestStage("c0", 0, 2), TestDecode("d0")});
  Request(1);
  const absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("chain c0 lacks rank 1 of 2"));
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ADeadlineEndsBothLegsInEveryPhase) {
  JoinOnePair();
  const auto time_out = [this](const std::string& leg, const std::string& where) {
    now_us_ += kDeadlineUs;
    Handle(Tick{});
    EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
    const absl::Status status = Only<FinishCall>().outcome.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(LegOf(status), leg);
    EXPECT_EQ(InstanceOf(status), leg == "decode" ? "d0" : "c0-0");
    EXPECT_THAT(std::string(status.message()), HasSubstr(where));
    EXPECT_TRUE(core_->AtRest());
  };
  Reserving(1);
  EXPECT_EQ(core_->NextDeadlineUs(), now_us_ + kDeadlineUs);
  time_out("decode", "waiting for KV pages on d0");
  Prefilling(2);
  time_out("prefill", "in chain c0");
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  Decoding(3);
  time_out("decode", "after 1 tokens");
  Handle(CallSubmitted{4, "late", 100, 4, now_us_});
  EXPECT_EQ(Only<FinishCall>().outcome.status().code(), absl::StatusCode::kDeadlineExceeded);
}

// ---- The cluster ----

TEST_F(RouterCoreTest, ALostWorkerEndsOnlyItsOwnRequests) {
  RouterLimits limits;
  limits.max_resumes = 0;
  Reset(limits);
  JoinTwoPairs();
  std::map<std::string, std::vector<uint64_t>> calls_of_decode;
  for (uint64_t call_id = 1; call_id <= 4; ++call_id) {
    Decoding(call_id);
    Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
    calls_of_decode[reserve_.decode.id].push_back(call_id);
  }
  ASSERT_THAT(calls_of_decode["d0"], SizeIs(2));
  WorkerInfo again = TestDecode("d0");
  Dies(again.instance);
  again.instance.incarnation = 2;
  Ask(again);
  EXPECT_EQ(Only<AnswerLease>().status, absl::OkStatus());
  std::vector<uint64_t> ended;
  for (const FinishCall& finish : All<FinishCall>()) {
    ended.push_back(finish.call_id);
    EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
    EXPECT_EQ(InstanceOf(finish.outcome.status()), "d0");
    EXPECT_FALSE(IsEndedByDrain(finish.outcome.status()));
    EXPECT_THAT(std::string(finish.outcome.status().message()),
                HasSubstr("was replaced by a new incarnation"));
  }
  EXPECT_EQ(ended, calls_of_decode["d0"]);
  EXPECT_EQ(core_->load().in_flight, 2);
}

TEST_F(RouterCoreTest, WhoGivesWayToOthersEndsItsRequestsAndSaysForWhom) {
  JoinOnePair();
  Decoding(1);
  std::vector<WorkerInfo> others = {TestStage("x", 0, 1)};
  for (const char* id : {"dx0", "dx1", "dx2"}) others.push_back(TestDecode(id));
  for (WorkerInfo& other : others) {
    for (auto& [layer, hash] : other.fingerprint.layer_hashes) hash += 0xf00;
    Ask(other);
  }
  EXPECT_EQ(Only<AnswerLease>().status, absl::OkStatus()) << "four against three";
  EXPECT_THAT(std::string(Only<FinishCall>().outcome.status().message()),
              HasSubstr("has given way to dx2"));
}

TEST_F(RouterCoreTest, ASilentStageEndsPrefillsButNotDecodes) {
  Reset({});
  JoinOnePair();
  Decoding(1);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  now_us_ = kDeadlineUs * 9;
  Beat({"c0-0", 1});
  Beat({"d0", 1});
  Handle(Tick{});  // Ends client 1 by its deadline.
  Decoding(2);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  const uint64_t decoding = reserve_.attempt_id;
  now_us_ += kDeadlineUs / 2;
  Prefilling(3);
  Reserving(4);
  now_us_ = kDeadlineUs * 10;
  Handle(ClientGone{2});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, decoding);
  Decoding(5);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(Tick{});  // Stage 1 has not been heard from.
  std::vector<uint64_t> ended;
  for (const FinishCall& finish : All<FinishCall>()) {
    ended.push_back(finish.call_id);
    EXPECT_EQ(LegOf(finish.outcome.status()), "prefill");
    EXPECT_EQ(InstanceOf(finish.outcome.status()), "c0-1");
  }
  EXPECT_THAT(ended, ElementsAre(3, 4));
  EXPECT_EQ(core_->load().decoding, 1);
  EXPECT_EQ(core_->load().leases_expired_total, 1);
}

// Its lease ended, it did not: an answer of its first life settles while it works for the second.
TEST_F(RouterCoreTest, AWorkerThatComesBackKeepsItsBooks) {
  RouterLimits limits;
  limits.settle_us = kDeadlineUs;
  Reset(limits);
  JoinOnePair();
  now_us_ = kDeadlineUs * 10 - 1;
  Beat({"c0-0", 1});
  Beat({"c0-1", 1});
  Decoding(1);
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  const uint64_t settling = reserve_.attempt_id;
  now_us_ += 1;
  Handle(Tick{});
  ASSERT_EQ(core_->load().leases_expired_total, 1);
  ASSERT_THAT(All<FinishCall>(), IsEmpty());
  Ask(TestDecode("d0"));
  for (const char* id : {"c0-0", "c0-1", "d0"}) Beat({id, 1});
  Decoding(2);
  Handle(PrefillEnded{settling, absl::OkStatus()});
  EXPECT_EQ(Only<FinishCall>().call_id, 1u);
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_EQ(Only<FinishCall>().call_id, 2u);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, AWorkersMembersAreSentOnlyWhenTheyChanged) {
  JoinOnePair();
  const std::vector<WorkerInfo> members = {TestStage("c0", 0, 2), TestStage("c0", 1, 2)};
  Ask(members[1]);  // A new call has told nothing yet.
  Say({"c0-1", 1}, {0, true, {}});
  EXPECT_EQ(Only<AnswerHeartbeat>().workers, members);
  Ask(TestDecode("d1"));
  Say({"c0-1", 1}, {0, true, {}});
  EXPECT_THAT(Only<AnswerHeartbeat>().workers, IsEmpty());
  Handle(HeartbeatReceived{999, true, {}});
  EXPECT_THAT(actions_, IsEmpty()) << "of a call that is over";
}

TEST_F(RouterCoreTest, DrainingFinishesWhatRunsAndTakesNothingNew) {
  JoinOnePair();
  Decoding(1);
  Handle(DrainRequested{3, "d0"});
  EXPECT_EQ(Only<ReplyDrain>().status, absl::OkStatus());
  Request(2);
  EXPECT_THAT(std::string(Only<FinishCall>().outcome.status().message()),
              HasSubstr("d0 is draining"));
  Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
  EXPECT_TRUE(Only<FinishCall>().outcome.ok());
}

TEST_F(RouterCoreTest, ALostWorkersRequestsAreRetriedBeforeTheFirstToken) {
  JoinTwoPairs();
  Prefilling(1);
  WorkerInfo again = TestDecode(reserve_.decode.id);
  Dies(again.instance);
  again.instance.incarnation = 2;
  Ask(again);
  EXPECT_THAT(All<FinishCall>(), IsEmpty());
  EXPECT_NE(Only<Reserve>().decode.id, again.instance.id);
}

TEST_F(RouterCoreTest, WhatFitsNoPairIsRefusedAtOnce) {
  JoinOnePair();
  Handle(CallSubmitted{1, "r1", 100'000, 4, now_us_ + kDeadlineUs});
  absl::Status status = Only<FinishCall>().outcome.status();
  EXPECT_TRUE(IsContextOverflow(status)) << status;
  EXPECT_EQ(FieldOf(status), "prompt");
  Handle(CallSubmitted{2, "r2", 100, 100'000, now_us_ + kDeadlineUs});
  status = Only<FinishCall>().outcome.status();
  EXPECT_TRUE(IsContextOverflow(status)) << status;
  EXPECT_EQ(FieldOf(status), "max_tokens");
}

TEST_F(RouterCoreTest, WhoAskedForNoNumberGetsWhatThePairHasRoomFor) {
  JoinOnePair();
  CallSubmitted call{1, "r1", 100, 100'000, now_us_ + kDeadlineUs};
  call.clip = true;
  Handle(call);
  EXPECT_EQ(Only<Reserve>().max_tokens,
            core_->membership().ReadyPairs()[0].max_context_tokens - 100);
  Handle(ClientGone{1});
  EXPECT_TRUE(core_->AtRest());
}

}  // namespace
}  // namespace baton::router
