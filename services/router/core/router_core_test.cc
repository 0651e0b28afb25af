#include "services/router/core/router_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "common/base/status.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kDeadlineUs = 1'000'000;

// Drives one RouterCore: events in, actions looked at by type. Checks the invariants after every
// event.
class RouterCoreTest : public ::testing::Test {
 protected:
  RouterCoreTest() { Reset({}); }

  void Reset(RouterLimits limits) {
    limits.attempt_seed = 0xab;
    if (limits.max_requests == 0) limits.max_requests = 100;
    limits.membership.lease_us = kDeadlineUs * 10;
    core_.emplace(limits);
  }

  void Do(const Event& event) {
    actions_.clear();
    core_->Handle(event, now_us_, actions_);
    ASSERT_EQ(core_->CheckInvariants(), absl::OkStatus());
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Action& action : actions_) {
      if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  template <typename T>
  T Only() const {
    const std::vector<T> found = All<T>();
    EXPECT_THAT(found, SizeIs(1));
    return found.at(0);
  }

  void Join(const std::vector<WorkerInfo>& workers) {
    for (const WorkerInfo& worker : workers) {
      Do(RegisterRequested{1, worker});
      ASSERT_EQ(Only<ReplyRegister>().status, absl::OkStatus());
    }
    for (const WorkerInfo& worker : workers) Beat(worker.instance);
  }
  void Beat(const InstanceRef& instance) {
    Do(HeartbeatReceived{2, instance, core_->membership().view_version(), true, {}});
  }
  void JoinOnePair() { Join({TestStage("c0", 0, 2), TestStage("c0", 1, 2), TestDecode("d0")}); }
  void JoinTwoPairs() {
    Join({TestStage("c0", 0, 1), TestStage("c1", 0, 1), TestDecode("d0"), TestDecode("d1")});
  }

  void Request(uint64_t client, const std::string& id = "") {
    Do(ClientRequested{client, id.empty() ? "r" + std::to_string(client) : id, 100, 4,
                       now_us_ + kDeadlineUs});
  }

  // Brings a new request of `client` to a phase and remembers its attempt.
  void Reserving(uint64_t client) {
    Request(client);
    reserve_ = Only<Reserve>();
  }
  void Prefilling(uint64_t client) {
    Reserving(client);
    Answer();
  }
  void Decoding(uint64_t client) {
    Prefilling(client);
    Do(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
    ASSERT_THAT(All<EmitToken>(), SizeIs(1));
  }
  void Answer() {
    Do(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 0, 5, 100, 7}});
    ASSERT_THAT(All<StartPrefill>(), SizeIs(1));
  }

  std::optional<RouterCore> core_;
  std::vector<Action> actions_;
  Reserve reserve_;
  int64_t now_us_ = 0;
};

const absl::Status kBroken = absl::UnavailableError("connection refused");

TEST_F(RouterCoreTest, ARequestGoesThroughAllItsPhases) {
  JoinOnePair();
  Reserving(1);
  EXPECT_EQ(reserve_.attempt_id >> 32, 0xab);
  EXPECT_EQ(reserve_.decode.id, "d0");
  EXPECT_THAT(reserve_.writers, SizeIs(2));
  EXPECT_EQ(core_->load().reserving, 1);

  Do(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 3, 5, 100, 7}});
  const OpenStream stream = Only<OpenStream>();
  EXPECT_EQ(stream.generation, 5);
  const StartPrefill start = Only<StartPrefill>();
  EXPECT_EQ(start.stage0.id, "c0-0");
  EXPECT_EQ(start.ticket.slot, 3);
  EXPECT_EQ(core_->load().prefilling, 1);

  Do(TokenReceived{reserve_.attempt_id, {7, -0.5F, {}}});
  EXPECT_EQ(Only<EmitToken>().token.token, 7);
  EXPECT_EQ(core_->load().decoding, 1);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_THAT(actions_, IsEmpty());
  Do(DecodeEnded{reserve_.attempt_id, DecodeFinish::kLength});
  const FinishClient finish = Only<FinishClient>();
  EXPECT_EQ(*finish.outcome, FinishReason::kLength);
  EXPECT_EQ(finish.attempts, 1);
  EXPECT_EQ(finish.chain_id, "c0");
  EXPECT_EQ(finish.decode_instance, "d0");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ACompleteAnswerWaitsForThePrefillReportButNotForLong) {
  JoinOnePair();
  Decoding(1);
  Do(DecodeEnded{reserve_.attempt_id, DecodeFinish::kStop});
  EXPECT_THAT(actions_, IsEmpty());
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  EXPECT_EQ(*Only<FinishClient>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());

  Decoding(2);
  Do(DecodeEnded{reserve_.attempt_id, DecodeFinish::kStop});
  now_us_ = core_->NextDeadlineUs();
  EXPECT_EQ(now_us_, RouterLimits().settle_us);
  Do(Tick{});
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishClient>().outcome, FinishReason::kStop);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, APrefillFailureAfterTheWholeAnswerChangesNothing) {
  JoinOnePair();
  Decoding(1);
  Do(DecodeEnded{reserve_.attempt_id, DecodeFinish::kLength});
  Do(PrefillEnded{reserve_.attempt_id, kBroken});
  EXPECT_EQ(*Only<FinishClient>().outcome, FinishReason::kLength);
  EXPECT_TRUE(core_->AtRest());
}

// ---- Failures of each leg in each phase ----

TEST_F(RouterCoreTest, AFailedReservationEndsTheRequestAndIsWithdrawn) {
  JoinOnePair();
  Reserving(1);
  Do(ReserveReplied{reserve_.attempt_id, kBroken});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, reserve_.attempt_id);
  EXPECT_THAT(All<AbortPrefill>(), IsEmpty());
  const absl::Status status = Only<FinishClient>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), "d0");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, APrefillFailureEndsTheDecodeLeg) {
  JoinOnePair();
  for (const bool decoding : {false, true}) {
    if (decoding) {
      Decoding(1);
    } else {
      Prefilling(1);
    }
    Do(PrefillEnded{reserve_.attempt_id, kBroken});
    EXPECT_EQ(Only<AbortDecode>().attempt_id, reserve_.attempt_id);
    const absl::Status status = Only<FinishClient>().outcome.status();
    EXPECT_EQ(LegOf(status), "prefill");
    EXPECT_EQ(InstanceOf(status), "c0-0");
    EXPECT_TRUE(core_->AtRest());
  }
}

TEST_F(RouterCoreTest, ADecodeFailureEndsThePrefillLeg) {
  JoinOnePair();
  for (const bool decoding : {false, true}) {
    if (decoding) {
      Decoding(1);
    } else {
      Prefilling(1);
    }
    Do(DecodeEnded{reserve_.attempt_id, kBroken});
    EXPECT_EQ(Only<AbortPrefill>().attempt_id, reserve_.attempt_id);
    const absl::Status status = Only<FinishClient>().outcome.status();
    EXPECT_EQ(LegOf(status), "decode");
    EXPECT_EQ(InstanceOf(status), "d0");
    EXPECT_TRUE(core_->AtRest());
  }
}

TEST_F(RouterCoreTest, TheLegThatAStatusNamesIsBlamed) {
  JoinOnePair();
  Prefilling(1);
  Do(DecodeEnded{reserve_.attempt_id, WithLeg(kBroken, "prefill", "c0-1")});
  const absl::Status status = Only<FinishClient>().outcome.status();
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "c0-1");
}

TEST_F(RouterCoreTest, ATicketThatDoesNotFitIsRefused) {
  JoinOnePair();
  const std::vector<Ticket> wrong = {
      {{"d0", 9}, 0, 5, 100, 7}, {{"d0", 1}, 0, 0, 100, 7}, {{"d0", 1}, 0, 5, 99, 7}};
  for (const Ticket& ticket : wrong) {
    Reserving(1);
    Do(ReserveReplied{reserve_.attempt_id, ticket});
    EXPECT_EQ(Only<FinishClient>().outcome.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  }
}

TEST_F(RouterCoreTest, ADecodeThatSendsTooMuchIsStopped) {
  JoinOnePair();
  Decoding(1);
  for (int i = 0; i < 3; ++i) Do(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(All<EmitToken>(), SizeIs(1));
  Do(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(All<EmitToken>(), IsEmpty());
  EXPECT_EQ(Only<FinishClient>().outcome.status().code(), absl::StatusCode::kInternal);
}

// ---- Retries ----

TEST_F(RouterCoreTest, AFailureBeforeTheFirstTokenIsRetriedOnceElsewhere) {
  JoinTwoPairs();
  Prefilling(1);
  const Reserve first = reserve_;
  Do(PrefillEnded{first.attempt_id, kBroken});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, first.attempt_id);
  EXPECT_THAT(All<FinishClient>(), IsEmpty());
  reserve_ = Only<Reserve>();
  EXPECT_NE(reserve_.attempt_id, first.attempt_id);
  EXPECT_NE(reserve_.writers, first.writers);
  EXPECT_EQ(core_->load().retries_prefill_total, 1);

  Answer();
  Do(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  const FinishClient finish = Only<FinishClient>();
  EXPECT_EQ(finish.attempts, 2);
  EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ARetriedReservationTakesAnotherDecode) {
  JoinTwoPairs();
  Reserving(1);
  const Reserve first = reserve_;
  Do(ReserveReplied{first.attempt_id, kBroken});
  EXPECT_NE(Only<Reserve>().decode, first.decode);
  EXPECT_EQ(core_->load().retries_decode_total, 1);
  // The one that failed is avoided by others, too, until it is heard from.
  for (uint64_t client = 2; client < 6; ++client) {
    Reserving(client);
    EXPECT_NE(reserve_.decode, first.decode);
  }
  Beat(first.decode);
  Reserving(6);
  EXPECT_EQ(reserve_.decode, first.decode);
}

TEST_F(RouterCoreTest, NothingIsRetriedAfterTheFirstToken) {
  JoinTwoPairs();
  Decoding(1);
  Do(DecodeEnded{reserve_.attempt_id, kBroken});
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  EXPECT_EQ(Only<FinishClient>().attempts, 1);
}

TEST_F(RouterCoreTest, WhatFailsEverywhereIsNotRetried) {
  JoinTwoPairs();
  Reserving(1);
  Do(ReserveReplied{reserve_.attempt_id, InvalidField("prompt", "odd")});
  EXPECT_THAT(All<Reserve>(), IsEmpty());
  EXPECT_EQ(FieldOf(Only<FinishClient>().outcome.status()), "prompt");
}

TEST_F(RouterCoreTest, EventsOfAnAttemptThatIsOverAreIgnored) {
  JoinTwoPairs();
  Prefilling(1);
  const uint64_t old = reserve_.attempt_id;
  Do(PrefillEnded{old, kBroken});
  reserve_ = Only<Reserve>();
  const std::vector<Event> stale = {ReserveReplied{old, Ticket{reserve_.decode, 0, 5, 100, 7}},
                                    TokenReceived{old, {}},
                                    DecodeEnded{old, DecodeFinish::kStop},
                                    DecodeEnded{old, kBroken},
                                    PrefillEnded{old, kBroken},
                                    PrefillEnded{old, {}}};
  for (const Event& event : stale) {
    Do(event);
    EXPECT_THAT(actions_, IsEmpty());
  }
  EXPECT_EQ(core_->load().reserving, 1);
}

// ---- Clients ----

TEST_F(RouterCoreTest, AClientThatGoesAwayEndsBothLegsSilently) {
  JoinOnePair();
  Reserving(1);
  Do(ClientGone{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(1));
  Prefilling(2);
  Do(ClientGone{2});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(2));
  Decoding(3);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Do(ClientGone{3});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(actions_, SizeIs(1));
  Do(ClientGone{3});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, AbortTellsTheClient) {
  JoinOnePair();
  Prefilling(1);
  Do(AbortCalled{77, "r1"});
  EXPECT_EQ(Only<ReplyAbort>().call, 77);
  EXPECT_EQ(Only<ReplyAbort>().status, absl::OkStatus());
  EXPECT_EQ(*Only<FinishClient>().outcome, FinishReason::kAbort);
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_THAT(All<AbortPrefill>(), SizeIs(1));
  Do(AbortCalled{78, "r1"});
  EXPECT_EQ(Only<ReplyAbort>().status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, AStopStringEndsTheDecodeLeg) {
  JoinOnePair();
  Decoding(1);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Do(StopMatched{1});
  EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
  EXPECT_EQ(*Only<FinishClient>().outcome, FinishReason::kStop);
  Do(TokenReceived{reserve_.attempt_id, {}});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, DuplicateIdsAreRefusedWhileTheFirstRuns) {
  JoinOnePair();
  Decoding(1);
  Request(2, "r1");
  EXPECT_EQ(Only<FinishClient>().client, 2);
  EXPECT_EQ(Only<FinishClient>().outcome.status().code(), absl::StatusCode::kAlreadyExists);
  Do(ClientGone{1});
  Request(3, "r1");
  EXPECT_THAT(All<Reserve>(), SizeIs(1));
}

TEST_F(RouterCoreTest, TheNumberOfRequestsIsBounded) {
  Reset({.max_requests = 2});
  JoinOnePair();
  Request(1);
  Request(2);
  Request(3);
  const absl::Status status = Only<FinishClient>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(LegOf(status), "router");
  EXPECT_EQ(core_->load().in_flight, 2);
}

TEST_F(RouterCoreTest, WithoutAPairTheRefusalSaysWhatIsMissing) {
  Join({TestStage("c0", 0, 2), TestDecode("d0")});
  Request(1);
  const absl::Status status = Only<FinishClient>().outcome.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("chain c0 lacks rank 1 of 2"));
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(RouterCoreTest, ADeadlineEndsBothLegsInEveryPhase) {
  JoinOnePair();
  const auto time_out = [this](const std::string& leg, const std::string& where) {
    now_us_ += kDeadlineUs;
    Do(Tick{});
    EXPECT_THAT(All<AbortDecode>(), SizeIs(1));
    const absl::Status status = Only<FinishClient>().outcome.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(LegOf(status), leg);
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
  Do(ClientRequested{4, "late", 100, 4, now_us_});
  EXPECT_EQ(Only<FinishClient>().outcome.status().code(), absl::StatusCode::kDeadlineExceeded);
}

// ---- The cluster ----

TEST_F(RouterCoreTest, ALostWorkerEndsOnlyItsOwnRequests) {
  JoinTwoPairs();
  std::map<std::string, std::vector<uint64_t>> clients_of_decode;
  for (uint64_t client = 1; client <= 4; ++client) {
    Decoding(client);
    Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
    clients_of_decode[reserve_.decode.id].push_back(client);
  }
  ASSERT_THAT(clients_of_decode["d0"], SizeIs(2));
  WorkerInfo again = TestDecode("d0");
  again.instance.incarnation = 2;
  Do(RegisterRequested{9, again});
  EXPECT_EQ(Only<ReplyRegister>().status, absl::OkStatus());
  std::vector<uint64_t> ended;
  for (const FinishClient& finish : All<FinishClient>()) {
    ended.push_back(finish.client);
    EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
    EXPECT_EQ(InstanceOf(finish.outcome.status()), "d0");
  }
  EXPECT_EQ(ended, clients_of_decode["d0"]);
  EXPECT_EQ(core_->load().in_flight, 2);
}

TEST_F(RouterCoreTest, ASilentStageEndsPrefillsButNotDecodes) {
  Reset({});
  JoinOnePair();
  Decoding(1);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  now_us_ = kDeadlineUs * 9;
  Beat({"c0-0", 1});
  Beat({"d0", 1});
  Do(Tick{});  // Ends client 1 by its deadline.
  Decoding(2);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  const uint64_t decoding = reserve_.attempt_id;
  now_us_ += kDeadlineUs / 2;
  Prefilling(3);
  Reserving(4);
  now_us_ = kDeadlineUs * 10;
  Do(ClientGone{2});
  EXPECT_EQ(Only<AbortDecode>().attempt_id, decoding);
  Decoding(5);
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Do(Tick{});  // Stage 1 has not been heard from.
  std::vector<uint64_t> ended;
  for (const FinishClient& finish : All<FinishClient>()) {
    ended.push_back(finish.client);
    EXPECT_EQ(LegOf(finish.outcome.status()), "prefill");
    EXPECT_EQ(InstanceOf(finish.outcome.status()), "c0-1");
  }
  EXPECT_THAT(ended, ElementsAre(3, 4));
  EXPECT_EQ(core_->load().decoding, 1);
  EXPECT_EQ(core_->load().leases_expired_total, 1);
}

TEST_F(RouterCoreTest, ViewsAreSentOnlyWhenTheyChanged) {
  JoinOnePair();
  const uint64_t version = core_->membership().view_version();
  Do(HeartbeatReceived{5, {"d0", 1}, version - 1, true, {}});
  EXPECT_TRUE(Only<ReplyHeartbeat>().view_changed);
  EXPECT_THAT(Only<ReplyHeartbeat>().workers, SizeIs(3));
  Do(HeartbeatReceived{6, {"d0", 1}, version, true, {}});
  EXPECT_FALSE(Only<ReplyHeartbeat>().view_changed);
  EXPECT_THAT(Only<ReplyHeartbeat>().workers, IsEmpty());
  Do(HeartbeatReceived{7, {"d9", 1}, version, true, {}});
  EXPECT_EQ(Only<ReplyHeartbeat>().status.code(), absl::StatusCode::kNotFound);
}

TEST_F(RouterCoreTest, DrainingFinishesWhatRunsAndTakesNothingNew) {
  JoinOnePair();
  Decoding(1);
  Do(DrainRequested{3, "d0"});
  EXPECT_EQ(Only<ReplyDrain>().status, absl::OkStatus());
  Request(2);
  EXPECT_THAT(std::string(Only<FinishClient>().outcome.status().message()),
              HasSubstr("d0 is draining"));
  Do(PrefillEnded{reserve_.attempt_id, absl::OkStatus()});
  Do(DecodeEnded{reserve_.attempt_id, DecodeFinish::kStop});
  EXPECT_TRUE(Only<FinishClient>().outcome.ok());
}

TEST_F(RouterCoreTest, ALostWorkersRequestsAreRetriedBeforeTheFirstToken) {
  JoinTwoPairs();
  Prefilling(1);
  WorkerInfo again = TestDecode(reserve_.decode.id);
  again.instance.incarnation = 2;
  Do(RegisterRequested{9, again});
  EXPECT_THAT(All<FinishClient>(), IsEmpty());
  EXPECT_NE(Only<Reserve>().decode.id, again.instance.id);
}

}  // namespace
}  // namespace baton::router
