// A decode service of several ranks, as its rank 0's core sees it.
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

const std::vector<InstanceRef> kFollowers{
    {"decode-0-1", 201}, {"decode-0-2", 202}, {"decode-0-3", 203}};

// A head of the model's for each.
DecodeLimits LimitsOf(int ranks) {
  DecodeLimits limits = Limits();
  limits.ranks = ranks;
  limits.kv_heads = ranks;
  return limits;
}

// One stage of two ranks: each has two heads.
std::vector<KvWriter> TwoWriters() {
  return {{{"prefill-0-0", 1}, {0, 6}, {0, 2}}, {{"prefill-0-1", 2}, {0, 6}, {1, 2}}};
}

class RanksTest : public DecodeCoreTest {
 protected:
  explicit RanksTest(int ranks = 4) : DecodeCoreTest(LimitsOf(ranks)) {}

  void Join(int page_count = 10, uint64_t newest_generation = 0) {
    ASSERT_TRUE(core_.may_join());
    Handle(RanksJoined{kFollowers, page_count, newest_generation});
  }
  static ReserveRequested Request(uint64_t attempt, int prompt = 6, int max_tokens = 5) {
    ReserveRequested request = DecodeCoreTest::Request(attempt, prompt, max_tokens);
    request.writers = TwoWriters();
    return request;
  }
  // Grants of all ranks, of the reservation that was made last.
  std::map<int, GrantKv> Grants() {
    std::map<int, GrantKv> grants;
    while (auto grant = TryTake<GrantKv>()) grants[grant->rank] = *grant;
    return grants;
  }
  Ticket Reserved(uint64_t attempt, int prompt = 6, int max_tokens = 5) {
    Handle(Request(attempt, prompt, max_tokens));
    const std::map<int, GrantKv> grants = Grants();
    for (int rank = 1; rank < 4; ++rank) {
      const KvGrant& grant = grants.at(rank).grant;
      Handle(FollowerGranted{rank, grant.slot, grant.generation});
    }
    return Take<ReplyReserve>().ticket.value();
  }
  void CommitOn(int rank, const Ticket& ticket) {
    if (rank == 0) return Commit(ticket, 7);
    Handle(FollowerHeard{rank, KvCommitted{ticket.slot, ticket.generation, {}, 0}});
  }
  void DrainOn(int rank, const Ticket& ticket) {
    const KvDrained drained{ticket.slot, ticket.generation};
    Handle(rank == 0 ? Event(drained) : Event(FollowerHeard{rank, drained}));
  }
};

TEST_F(RanksTest, RefusesUntilAllAreTogether) {
  EXPECT_FALSE(core_.joined());
  const absl::Status refusal = Refused(Request(1));
  EXPECT_TRUE(absl::IsUnavailable(refusal)) << refusal;
  EXPECT_EQ(LegOf(refusal), "decode");
  Join();
  EXPECT_TRUE(core_.joined());
  Reserved(1);
}

TEST_F(RanksTest, TheTicketWaitsForEveryRanksTable) {
  Join();
  Handle(Request(1, 6, 5));
  const std::map<int, GrantKv> grants = Grants();
  ASSERT_EQ(grants.size(), 4);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_FALSE(TryTake<ReplyReserve>().has_value()) << rank;
    Handle(FollowerGranted{rank, grants.at(rank).grant.slot, grants.at(rank).grant.generation});
  }
  const Ticket ticket = Take<ReplyReserve>().ticket.value();
  EXPECT_EQ(ticket.followers, kFollowers);
  for (const auto& [rank, grant] : grants) {
    EXPECT_EQ(grant.grant.generation, ticket.generation);
    EXPECT_EQ(grant.grant.pages, grants.at(0).grant.pages);
    EXPECT_EQ(grant.grant.pages.size(), 2u);
    EXPECT_EQ(grant.continuation.size(), 1u);
    // Two of the four decode ranks take heads from each writer.
    ASSERT_EQ(grant.grant.writers.size(), 1u);
    EXPECT_EQ(grant.grant.writers[0].tensor_rank.rank, rank / 2);
  }
}

TEST_F(RanksTest, OneRankSaysItTwiceAndAnotherNever) {
  Join();
  Handle(Request(1));
  const KvGrant grant = Grants().at(1).grant;
  for (int i = 0; i < 3; ++i) Handle(FollowerGranted{1, grant.slot, grant.generation});
  EXPECT_FALSE(TryTake<ReplyReserve>().has_value());
}

TEST_F(RanksTest, RunsWhenAllHaveCommitted) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  for (const int rank : {2, 0, 3}) CommitOn(rank, ticket);
  CommitOn(3, ticket);
  EXPECT_FALSE(TryTake<RunStep>().has_value());
  CommitOn(1, ticket);
  EXPECT_EQ(Take<DeliverToken>().token.token, 7) << "rank 0's first token";
  const RunStep step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 1u);
  EXPECT_EQ(step.sequences[0].slot, ticket.slot);
  EXPECT_EQ(step.sequences[0].generation, ticket.generation);
}

TEST_F(RanksTest, FailsWithAnyRank) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  CommitOn(0, ticket);
  Handle(FollowerHeard{2, KvFailed{ticket.slot, ticket.generation, absl::DataLossError("bytes")}});
  EXPECT_TRUE(absl::IsDataLoss(Take<Finish>().outcome.status()));
  EXPECT_FALSE(core_.AtRest());
}

TEST_F(RanksTest, PagesComeBackWhenAllHaveDrained) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(AbortRequested{1, absl::OkStatus()});
  Take<RevokeKv>();
  for (const int rank : {3, 0, 1}) DrainOn(rank, ticket);
  EXPECT_EQ(core_.load().quarantined_pages, 3);
  DrainOn(2, ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(RanksTest, AnAbortBeforeTheTicketIsItsAnswer) {
  Join();
  Handle(Request(1));
  Grants();
  Handle(AbortRequested{1, absl::OkStatus()});
  EXPECT_TRUE(absl::IsCancelled(Take<ReplyReserve>().ticket.status()));
  Take<RevokeKv>();
}

TEST_F(RanksTest, ADeadlineBeforeTheTicketIsItsAnswer) {
  Join();
  ReserveRequested request = Request(1);
  request.deadline_us = 1000;
  Handle(request);
  EXPECT_EQ(core_.NextDeadlineUs(), 1000);
  now_us_ = 1000;
  Handle(Tick{});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take<ReplyReserve>().ticket.status()));
}

// Its lease on the stream begins with the ticket, not with the pages.
TEST_F(RanksTest, TheStreamsLeaseBeginsWithTheTicket) {
  Join();
  Handle(Request(1));
  const std::map<int, GrantKv> grants = Grants();
  now_us_ = 10'000'000;
  for (int rank = 1; rank < 4; ++rank) {
    Handle(FollowerGranted{rank, grants.at(rank).grant.slot, grants.at(rank).grant.generation});
  }
  EXPECT_TRUE(Take<ReplyReserve>().ticket.ok());
  EXPECT_EQ(core_.NextDeadlineUs(), 13'000'000);
}

TEST_F(RanksTest, LossOfARankEndsAllThatIsHeld) {
  Join();
  const Ticket running = Reserved(1);
  Handle(StreamOpened{1, running.generation});
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, running);
  const RunStep step = Take<RunStep>();
  const Ticket reserved = Reserved(2);
  Handle(StreamOpened{2, reserved.generation});
  Handle(Request(3));         // No ticket yet.
  Handle(Request(4, 30, 4));  // Waits for pages.
  actions_.clear();
  const absl::Status gone = WithLeg(absl::UnavailableError("gone"), "decode", "decode-0-2");
  Handle(RanksLost{gone});
  Handle(RanksLost{gone});  // From links that had not all come up.
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Take<Finish>().outcome.status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(InstanceOf(status), "decode-0-2");
  }
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(absl::IsUnavailable(Take<ReplyReserve>().ticket.status()));
  EXPECT_FALSE(core_.joined());
  EXPECT_FALSE(core_.may_join()) << "the step and rank 0's own table still hold pages";
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    const RevokeKv revoke = Take<RevokeKv>();
    Handle(KvDrained{revoke.slot, revoke.generation});
  }
  Handle(FollowerHeard{1, KvDrained{running.slot, running.generation}});  // Late.
  EXPECT_FALSE(core_.may_join());
  Handle(StepFinished{step.step, absl::UnavailableError("the group has ended"), {}});
  EXPECT_TRUE(core_.AtRest());
  EXPECT_TRUE(absl::StrContains(Refused(Request(5)).message(), "gone"));
  Join();
  Reserved(6);
}

// What is still on its way for a grant of a former life of rank 0 must not be taken for a new
// one's.
TEST_F(RanksTest, GenerationsGoPastThoseThatFollowersHaveHad) {
  Join(10, 41);
  EXPECT_EQ(Reserved(1).generation, 42u);
}

TEST_F(RanksTest, HasAsManyPagesAsTheSmallestRank) {
  Join(3);
  EXPECT_EQ(core_.load().free_pages, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(Request(1, 10, 5))));
  const Ticket ticket = Reserved(2, 6, 5);
  EXPECT_EQ(core_.load().free_pages, 0);
  Handle(AbortRequested{2, absl::OkStatus()});
  for (int rank = 0; rank < 4; ++rank) DrainOn(rank, ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(RanksTest, AFailedStepPartsTheRanks) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  Handle(StepFinished{Take<RunStep>().step, absl::UnavailableError("rank 2 is silent"), {}});
  EXPECT_TRUE(absl::StrContains(Take<PartRanks>().status.message(), "rank 2"));
}

// Found by the simulation: clients got CANCELLED, as if they had cancelled.
TEST_F(RanksTest, ARankThatLeavesInAStepCancelsNobodysRequest) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  const absl::Status why = absl::CancelledError("the epoch is over");
  Handle(StepFinished{Take<RunStep>().step, WithLeg(why, "decode", kFollowers[1].id), {}});
  const absl::Status status = Take<Finish>().outcome.status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(InstanceOf(status), kFollowers[1].id);
}

// No writer knows of a grant that has no ticket yet.
TEST_F(RanksTest, NothingCountsBeforeTheTicketButAFailure) {
  Join();
  Handle(Request(1));
  const std::map<int, GrantKv> grants = Grants();
  const KvGrant grant = grants.at(0).grant;
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, {.slot = grant.slot, .generation = 1});
  Handle(StreamOpened{1, grant.generation});
  EXPECT_TRUE(absl::IsFailedPrecondition(Take<RefuseStream>().status));
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(core_.load().reserved, 1);
  for (int rank = 1; rank < 4; ++rank) {
    Handle(FollowerGranted{rank, grant.slot, grant.generation});
    Handle(FollowerGranted{rank, grant.slot, grant.generation});
  }
  const Ticket ticket = Take<ReplyReserve>().ticket.value();
  EXPECT_FALSE(TryTake<ReplyReserve>().has_value()) << "one ticket";
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(actions_.empty());
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  Take<RunStep>();

  Handle(Request(2));
  actions_.clear();
  Handle(FollowerHeard{3, KvFailed{1, 2, WithLeg(absl::DataLossError(""), "prefill", "p")}});
  const absl::Status status = Take<ReplyReserve>().ticket.status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(InstanceOf(status), "p");
  Take<RevokeKv>();
  EXPECT_FALSE(TryTake<Finish>().has_value());
}

TEST_F(RanksTest, AWordForAnotherSlotIsNobodys) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(AbortRequested{1, absl::OkStatus()});
  for (int rank = 0; rank < 3; ++rank) DrainOn(rank, ticket);
  Handle(FollowerHeard{3, KvDrained{ticket.slot + 1, ticket.generation}});
  Handle(FollowerHeard{3, KvDrained{ticket.slot, ticket.generation + 1}});
  EXPECT_EQ(core_.load().quarantined_pages, 3);
  DrainOn(3, ticket);
  EXPECT_TRUE(core_.AtRest());
}

// Rank 0's own table is no peer that may be late.
TEST_F(RanksTest, AWordOfItsOwnTableForNothingIsABrokenInvariant) {
  Join();
  const Ticket ticket = Reserved(1);
  EXPECT_DEATH(Handle(KvDrained{ticket.slot, ticket.generation}), "was not revoked");
}

TEST_F(RanksTest, ALossGivesBackWhatFollowersAloneHeld) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(AbortRequested{1, absl::OkStatus()});
  DrainOn(0, ticket);
  EXPECT_FALSE(core_.AtRest());
  Handle(RanksLost{absl::UnavailableError("gone")});
  EXPECT_TRUE(core_.AtRest());
  EXPECT_TRUE(core_.may_join());
}

TEST_F(RanksTest, WhatHasEndedBeforeALossKeepsItsOutcome) {
  Join();
  for (uint64_t attempt = 1; attempt <= 2; ++attempt) {
    const Ticket ticket = Reserved(attempt, 4, attempt == 1 ? 1 : 4);
    for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  }
  actions_.clear();
  Handle(RanksLost{absl::UnavailableError("gone")});
  EXPECT_EQ(Take<Finish>().attempt_id, 2u);
  EXPECT_FALSE(TryTake<Finish>().has_value());
  Handle(StreamOpened{1, 1});
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
}

TEST_F(RanksTest, AStepThatSucceedsPartsNobody) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  FinishStep(Take<RunStep>(), 5);
  EXPECT_FALSE(TryTake<PartRanks>().has_value());
}

TEST_F(RanksTest, AbortedSumsAreARanksFaultToo) {
  Join();
  const Ticket ticket = Reserved(1);
  Handle(StreamOpened{1, ticket.generation});
  for (int rank = 0; rank < 4; ++rank) CommitOn(rank, ticket);
  Handle(StepFinished{Take<RunStep>().step, absl::AbortedError("the group is over"), {}});
  const absl::Status status = Take<Finish>().outcome.status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(InstanceOf(status), kSelf.id) << "nobody else is named";
}

// The last stage's rank 0 draws, wherever it stands among the writers.
TEST_F(RanksTest, ABadFirstTokenIsThatRanksFaultThatDraws) {
  Join();
  ReserveRequested request = Request(1);
  request.writers = {{{"last-1", 4}, {3, 6}, {1, 2}},
                     {{"last-0", 3}, {3, 6}, {0, 2}},
                     {{"first-0", 1}, {0, 3}, {0, 2}},
                     {{"first-1", 2}, {0, 3}, {1, 2}}};
  Handle(request);
  const KvGrant grant = Grants().at(0).grant;
  for (int rank = 1; rank < 4; ++rank) {
    Handle(FollowerGranted{rank, grant.slot, grant.generation});
  }
  const Ticket ticket = Take<ReplyReserve>().ticket.value();
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 100);
  for (int rank = 1; rank < 4; ++rank) CommitOn(rank, ticket);
  EXPECT_EQ(InstanceOf(Take<Finish>().outcome.status()), "last-0");
}

class TwoRanksTest : public RanksTest {
 protected:
  TwoRanksTest() : RanksTest(2) {}
};

TEST_F(TwoRanksTest, ArePartedByAFailedStep) {
  EXPECT_TRUE(core_.may_join());
  Handle(RanksJoined{{kFollowers[0]}, 10, 0});
  EXPECT_FALSE(core_.may_join());
  Handle(Request(1));
  Handle(FollowerGranted{1, 0, 1});
  const Ticket ticket = Take<ReplyReserve>().ticket.value();
  Handle(StreamOpened{1, ticket.generation});
  for (const int rank : {0, 1}) CommitOn(rank, ticket);
  Handle(StepFinished{Take<RunStep>().step, absl::InternalError("no memory"), {}});
  Take<PartRanks>();
}

class ManyRanksTest : public RanksTest {
 protected:
  ManyRanksTest() : RanksTest(64) {}
};

// As many as a set of ranks has bits.
TEST_F(ManyRanksTest, AllCount) {
  Handle(RanksJoined{std::vector<InstanceRef>(63), 10, 0});
  ReserveRequested request = Request(1);
  request.writers.clear();
  for (int rank = 0; rank < 64; ++rank) {
    request.writers.push_back({{"p", 1}, {0, 6}, {rank, 64}});
  }
  Handle(request);
  for (int rank = 63; rank > 0; --rank) {
    EXPECT_FALSE(TryTake<ReplyReserve>().has_value()) << rank;
    Handle(FollowerGranted{rank, 0, 1});
  }
  const Ticket ticket = Take<ReplyReserve>().ticket.value();
  Handle(StreamOpened{1, ticket.generation});
  for (int rank = 63; rank >= 0; --rank) {
    EXPECT_FALSE(TryTake<RunStep>().has_value()) << rank;
    CommitOn(rank, ticket);
  }
  Take<RunStep>();
}

TEST_F(RanksTest, AskForWritersThatHaveRoutes) {
  Join();
  ReserveRequested request = Request(1);
  request.writers.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(request)));
}

}  // namespace
}  // namespace baton::decode
