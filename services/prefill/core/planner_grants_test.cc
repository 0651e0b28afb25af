// Requests whose prompt others read: a decode service's.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

using Ids = std::vector<int32_t>;

const InstanceRef kSelf{"decode-0", 100};
const std::vector<KvWriter> kWriters{{{"prefill-0", 1}, {0, 2}}, {{"prefill-1", 2}, {2, 6}}};

class GrantsTest : public DecodingTest {
 protected:
  static PlannerLimits Granting(bool caches = false) {
    PlannerLimits limits = Decoding();
    limits.granting = kSelf;
    limits.layers = 6;
    limits.kv_heads = 2;
    limits.name = "decode service";
    limits.caches = caches;
    return limits;
  }
  explicit GrantsTest(const PlannerLimits& limits = Granting()) : DecodingTest(limits) {}

  void Up(int pages = 64, int ranks = 1, uint64_t newest = 0) {
    ChainUp up{kEpoch, 1, pages};
    up.ranks = ranks;
    for (int rank = 1; rank < ranks; ++rank) {
      up.followers.push_back({absl::StrCat("decode-0-", rank), 7});
    }
    up.newest_generation = newest;
    Send(up);
  }
  static StartRequested Request(uint64_t attempt, int tokens = 20, int max_tokens = 5) {
    StartRequested start{attempt, tokens};
    start.stop = {.max_tokens = max_tokens, .eos_ids = {kEos}};
    start.writers = kWriters;
    return start;
  }
  static StartRequested Cached(uint64_t attempt, int tokens, int max_tokens = 5) {
    StartRequested start = Request(attempt, tokens, max_tokens);
    start.tokens = std::make_shared<const Ids>(static_cast<size_t>(tokens), 9);
    return start;
  }
  // Expects a ticket at once.
  Ticket Reserve(const StartRequested& request) {
    Send(request);
    const auto tickets = All<HandOutTicket>();
    EXPECT_EQ(tickets.size(), 1u);
    return tickets.empty() ? Ticket{} : tickets[0].ticket;
  }
  void Commit(const Ticket& ticket, int32_t token = 41, int rank = 0) {
    std::optional<SampledToken> first;
    if (rank == 0) first = SampledToken{token, -1, {}};
    Send(KvHeard{rank, KvCommitted{ticket.slot, ticket.generation, first, 0}});
  }
  void Drain(const Ticket& ticket, int rank = 0) {
    Send(KvHeard{rank, KvDrained{ticket.slot, ticket.generation}});
  }
  Ticket Decoding1(const StartRequested& request) {
    Ticket ticket = Reserve(request);
    Commit(ticket);
    Drain(ticket);
    return ticket;
  }
  void Step(int32_t token = 41) {
    ASSERT_LT(done_, plans_.size());
    const Plan plan = plans_[done_++];
    Drawn(0, plan, token);
  }
  int used() const { return planner_->load().owned_pages; }

  size_t done_ = 0;  // Plans.
};

TEST_F(GrantsTest, FromTheTicketToTheLastToken) {
  Up();
  const Ticket ticket = Reserve(Request(1, 20, 3));
  EXPECT_EQ(ticket.decode, kSelf);
  EXPECT_EQ(ticket.prompt_tokens, 20);
  EXPECT_EQ(ticket.prompt_pages, 2);
  EXPECT_EQ(ticket.first_page, 0);
  const std::vector<GrantKv> grants = All<GrantKv>();
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].grant.slot, ticket.slot);
  EXPECT_EQ(grants[0].grant.generation, ticket.generation);
  EXPECT_EQ(grants[0].grant.pages.size(), 2u);
  EXPECT_EQ(grants[0].grant.writers, kWriters);
  EXPECT_TRUE(plans_.empty()) << "the stage hears of it when there is something to do";

  Commit(ticket, 41);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_EQ(All<DeliverToken>()[0].token.token, 41);
  EXPECT_EQ(All<RevokeKv>().size(), 1u) << "nothing is written any more";
  ASSERT_EQ(plans_.size(), 1u);
  ASSERT_EQ(plans_[0].opens.size(), 1u);
  EXPECT_TRUE(plans_[0].opens[0].adopted());
  EXPECT_EQ(plans_[0].opens[0].pages, grants[0].grant.pages);
  ASSERT_EQ(plans_[0].items.size(), 1u);
  EXPECT_EQ(plans_[0].items[0].token_begin, 20);
  EXPECT_EQ(plans_[0].items[0].token, 41);
  Drain(ticket);
  Step(42);
  EXPECT_EQ(plans_.at(1).items.at(0).token, 42);
  EXPECT_TRUE(plans_[1].opens.empty());
  Step(43);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(finished_[0].status.ok());
  EXPECT_EQ(finished_[0].reason, FinishReason::kLength);
  EXPECT_EQ(plans_.at(2).aborts, std::vector<uint64_t>{1});
  Step();
  EXPECT_EQ(used(), 2);
  Closed(0, 1);
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(GrantsTest, ATicketWaitsForNoStep) {
  Up();
  Decoding1(Request(1));
  ASSERT_EQ(plans_.size(), 1u);  // Under way.
  Reserve(Request(2));
}

TEST_F(GrantsTest, AFirstTokenMayBeTheLast) {
  Up();
  const Ticket ticket = Reserve(Request(1));
  Commit(ticket, kEos);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].reason, FinishReason::kStop);
  EXPECT_TRUE(plans_.empty());
  EXPECT_EQ(used(), 2) << "until the table has drained it";
  Drain(ticket);
  EXPECT_EQ(used(), 0);
}

TEST_F(GrantsTest, PagesComeBackWhenTheTableHasDrainedThem) {
  Up(4);
  const Ticket ticket = Reserve(Request(1));
  Send(AbortRequested{1, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(All<RevokeKv>().size(), 1u);
  EXPECT_EQ(planner_->load().ending_pages, 2);
  Send(Request(2, 60, 1));
  EXPECT_TRUE(All<GrantKv>().empty()) << "a late write may still meet the other's pages";
  Commit(ticket);
  EXPECT_TRUE(All<DeliverToken>().empty()) << "it is over";
  Drain(ticket);
  EXPECT_EQ(All<HandOutTicket>().size(), 1u);
}

TEST_F(GrantsTest, TheEndUnderAStepWaitsForIt) {
  Up(2);
  Decoding1(Request(1));
  Send(AbortRequested{1, absl::CancelledError("client")});
  Send(Request(2));
  EXPECT_TRUE(All<GrantKv>().empty());
  Step();
  Step();
  EXPECT_TRUE(All<GrantKv>().empty()) << "the stage has not closed it";
  Closed(0, 1);
  EXPECT_EQ(All<GrantKv>().size(), 1u);
}

TEST_F(GrantsTest, AFailedHandOffEndsItAndNamesWhoFailed) {
  Up();
  const Ticket ticket = Reserve(Request(1));
  const absl::Status silent =
      WithLeg(absl::UnavailableError("prefill-0 has been silent"), "prefill", "prefill-0");
  Send(KvHeard{0, KvFailed{ticket.slot, ticket.generation, silent}});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status, silent);
  Drain(ticket);
  EXPECT_EQ(used(), 0);
}

TEST_F(GrantsTest, AFirstTokenOutsideTheVocabularyIsPrefillsFault) {
  Up();
  const Ticket ticket = Reserve(Request(1));
  Commit(ticket, 100);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(LegOf(finished_[0].status), "prefill");
  EXPECT_EQ(InstanceOf(finished_[0].status), "prefill-1");
  Drain(ticket);
  EXPECT_EQ(used(), 0);
}

TEST_F(GrantsTest, TheDeadlineSaysWhatItWaitedFor) {
  Up(2);
  StartRequested first = Request(1);
  first.deadline_us = now_us_ + 100;
  const Ticket ticket = Reserve(first);
  StartRequested second = Request(2);
  second.deadline_us = now_us_ + 50;
  Send(second);
  now_us_ += 100;
  Send(Tick{});
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_EQ(finished_[0].status.message(), "deadline passed while waiting for pages");
  EXPECT_EQ(finished_[1].status.message(), "deadline passed while waiting for the prompt's KV");
  Drain(ticket);
}

TEST_F(GrantsTest, FirstComeFirstServed) {
  Up(4);
  const Ticket ticket = Reserve(Request(1));
  Send(Request(2, 60, 1));
  Send(Request(3, 10, 1));
  EXPECT_TRUE(All<GrantKv>().empty()) << "a small one takes nothing that a larger one waits for";
  EXPECT_EQ(planner_->load().queued, 2);
  Send(AbortRequested{1, absl::CancelledError("client")});
  Drain(ticket);
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  EXPECT_EQ(All<HandOutTicket>()[0].attempt_id, 2u);
}

TEST_F(GrantsTest, ADrainHandsBackWhatWaits) {
  Up(2);
  const Ticket ticket = Reserve(Request(1, 20, 2));
  Send(Request(2));
  Send(DrainBegan{});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].attempt_id, 2u);
  EXPECT_TRUE(IsEndedByDrain(finished_[0].status));
  EXPECT_EQ(planner_->drain_counts().handed_back_total, 1);
  Commit(ticket);
  Drain(ticket);
  Step();
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_TRUE(finished_[1].status.ok());
}

TEST_F(GrantsTest, WhatIsCachedIsNotSentAgain) {
  Make(Granting(/*caches=*/true));
  Up();
  const Ticket first = Decoding1(Cached(1, 50, 1));
  EXPECT_EQ(first.first_page, 0);
  EXPECT_EQ(planner_->load().cached_pages, 3);
  Send(Cached(2, 50));
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  EXPECT_EQ(All<HandOutTicket>()[0].ticket.first_page, 3);
  EXPECT_EQ(All<GrantKv>()[0].grant.first_page, 3);
  EXPECT_EQ(planner_->load().reused_pages_total, 3u);
  Send(Cached(3, 48));
  EXPECT_EQ(All<HandOutTicket>()[0].ticket.first_page, 2) << "the last page is sent";
  StartRequested other = Cached(4, 50);
  for (KvWriter& writer : other.writers) writer.tensor_rank.size = 2;
  Send(other);
  EXPECT_EQ(All<HandOutTicket>()[0].ticket.first_page, 0) << "of other ranks";
}

TEST_F(GrantsTest, WhatWasNotCommittedIsNotCached) {
  Make(Granting(/*caches=*/true));
  Up();
  const Ticket ticket = Reserve(Cached(1, 50));
  Send(AbortRequested{1, absl::CancelledError("client")});
  Drain(ticket);
  EXPECT_EQ(planner_->load().cached_pages, 0);
}

// ---- Growth ----

class GrowingGrantsTest : public GrantsTest {
 protected:
  static PlannerLimits Growing() {
    PlannerLimits limits = Granting();
    limits.reserved_decode_tokens = 1;
    return limits;
  }
  GrowingGrantsTest() : GrantsTest(Growing()) {}
  bool RetractedOnce() const { return planner_->load().retractions_total == 1; }
};

TEST_F(GrowingGrantsTest, WhatCannotBeReadHereHasItsPagesAtOnce) {
  Up();
  StartRequested blind = Request(1, 15, 34);
  blind.has_tokens = false;
  Reserve(blind);
  EXPECT_EQ(used(), 4);
  Reserve(Request(2, 15, 34));
  EXPECT_EQ(used(), 5);
}

// The youngest text gives way, is read here, and goes on.
TEST_F(GrowingGrantsTest, ATextThatGivesWayIsReadHere) {
  Up(3);
  Decoding1(Request(1, 15, 20));
  Decoding1(Request(2, 15, 20));
  while (!RetractedOnce()) Step();
  while (!planner_->load().queued) {
    if (done_ < plans_.size()) Step();
    if (!plans_.back().aborts.empty() && done_ == plans_.size()) break;
    Closed(0, 2);
  }
  EXPECT_TRUE(finished_.empty()) << "its caller has gone";
  while (finished_.empty()) Step();
  EXPECT_EQ(finished_[0].attempt_id, 1u);
  while (done_ < plans_.size()) Step();
  Closed(0, 1);
  ASSERT_EQ(plans_.back().opens.size(), 1u);
  const PlanOpen& again = plans_.back().opens[0];
  EXPECT_EQ(again.attempt_id, 2u);
  EXPECT_FALSE(again.adopted());
  EXPECT_FALSE(again.drawn.empty());
  EXPECT_EQ(plans_.back().items.at(0).token_begin, 0);
  while (finished_.size() < 2) Step();
  EXPECT_TRUE(finished_[1].status.ok()) << finished_[1].status;
}

// What comes for it is refused by the table; it is read here, from its first token on.
TEST_F(GrowingGrantsTest, AGrantGivesWayBeforeItsKvIsThere) {
  Up(3);
  Decoding1(Request(1, 15, 20));
  const Ticket ticket = Reserve(Request(2, 20, 2));
  while (All<RevokeKv>().empty()) Step();
  EXPECT_TRUE(RetractedOnce());
  Commit(ticket);
  EXPECT_TRUE(All<DeliverToken>().empty());
  Drain(ticket);
  EXPECT_EQ(planner_->load().queued, 1);
  Send(AbortRequested{1, absl::CancelledError("client")});
  while (done_ < plans_.size()) Step();
  Closed(0, 1);
  ASSERT_EQ(plans_.back().opens.size(), 1u);
  EXPECT_EQ(plans_.back().opens[0].attempt_id, 2u);
  EXPECT_FALSE(plans_.back().opens[0].adopted());
  Step(17);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_EQ(All<DeliverToken>()[0].token.token, 17);
}

// It was committed, and no stage had heard of it.
TEST_F(GrowingGrantsTest, ATextThatNoStageKnowsGivesWayAtOnce) {
  Up(3);
  Decoding1(Request(1, 15, 20));
  const Ticket ticket = Reserve(Request(2, 16, 20));
  ASSERT_EQ(plans_.size(), 1u);  // The first one's step, with its page's last token.
  Commit(ticket);
  Drain(ticket);
  Step();
  EXPECT_TRUE(RetractedOnce());
  ASSERT_EQ(plans_.size(), 2u) << "the first one goes on at once";
  EXPECT_GE(plans_[1].items.at(0).new_page, 0);
  EXPECT_EQ(planner_->load().queued, 1);
}

// ---- Ranks ----

TEST_F(GrantsTest, ATicketWaitsForEveryRank) {
  Up(64, 2);
  Send(Request(1));
  const std::vector<GrantKv> grants = All<GrantKv>();
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(grants[1].member, 1);
  EXPECT_EQ(grants[0].grant.pages, grants[1].grant.pages);
  EXPECT_TRUE(All<HandOutTicket>().empty());
  const KvGrant grant = grants[0].grant;
  Send(MemberGranted{1, grant.slot, grant.generation});
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  const Ticket ticket = All<HandOutTicket>()[0].ticket;
  EXPECT_EQ(ticket.followers, (std::vector<InstanceRef>{{"decode-0-1", 7}}));
  Commit(ticket, 41, /*rank=*/1);
  EXPECT_TRUE(All<DeliverToken>().empty()) << "rank 0 lacks its heads";
  Commit(ticket);
  EXPECT_EQ(All<DeliverToken>().size(), 1u);
  Drain(ticket);
  Send(AbortRequested{1, absl::CancelledError("client")});
  Send(StagePlanDone{0, kEpoch, {1, 10, 1}, 0});
  Send(StagePlanDone{0, kEpoch, {1, 10, 1}, 1});
  Send(StagePlanDone{0, kEpoch, {2, 10, 1}, 0});
  Send(StagePlanDone{0, kEpoch, {2, 10, 1}, 1});
  Closed(0, 1);
  Send(StageRequestClosed{0, kEpoch, {1, absl::OkStatus(), 0, 0, 0}, 1});
  EXPECT_EQ(used(), 2) << "rank 1 has not drained it";
  Drain(ticket, 1);
  EXPECT_EQ(used(), 0);
}

// Its ticket is not handed out, so no chain reads its prompt: it is granted pages again.
TEST_F(GrowingGrantsTest, AGrantWithoutATicketIsGrantedAgain) {
  Up(3, 2);
  Send(Request(1, 15, 20));
  const KvGrant first = All<GrantKv>().at(0).grant;
  Send(MemberGranted{1, first.slot, first.generation});
  const Ticket ticket = All<HandOutTicket>().at(0).ticket;
  Commit(ticket, 41, 1);
  Commit(ticket);
  Drain(ticket);
  Drain(ticket, 1);
  Send(Request(2, 20, 2));
  const KvGrant second = All<GrantKv>().at(0).grant;
  while (!RetractedOnce()) {
    const Plan plan = plans_.at(done_++);
    Send(StagePlanDone{0, kEpoch, {plan.number, 10, 1}, 1});
    Drawn(0, plan, 41);
  }
  Send(KvHeard{0, KvDrained{second.slot, second.generation}});
  Send(KvHeard{1, KvDrained{second.slot, second.generation}});
  EXPECT_EQ(planner_->load().queued, 1);
  Send(AbortRequested{1, absl::CancelledError("client")});
  while (done_ < plans_.size()) {
    const Plan plan = plans_.at(done_++);
    Send(StagePlanDone{0, kEpoch, {plan.number, 10, 1}, 1});
    Drawn(0, plan, 41);
  }
  Closed(0, 1);
  Send(StageRequestClosed{0, kEpoch, {1, absl::OkStatus(), 0, 0, 0}, 1});
  ASSERT_EQ(All<GrantKv>().size(), 2u);
  EXPECT_GT(All<GrantKv>()[0].grant.generation, second.generation);
}

TEST_F(GrantsTest, GenerationsGoOnFromWhatRanksHaveHad) {
  Up(64, 2, /*newest=*/41);
  Send(Request(1));
  EXPECT_EQ(All<GrantKv>().at(0).grant.generation, 42u);
  Send(ChainDown{absl::UnavailableError("a rank is lost")});
  EXPECT_EQ(finished_.size(), 1u);
  Send(KvHeard{0, KvDrained{0, 42}});
  Up();
  Send(Request(2));
  EXPECT_EQ(All<GrantKv>().at(0).grant.generation, 43u);
}

// ---- Stages ----

class StagedGrantsTest : public GrantsTest {
 protected:
  // Two stages of two ranks: members 0 and 1 have layers [0, 3), 2 and 3 the others.
  void UpStaged() {
    ChainUp up{kEpoch, 2, 64};
    up.stage_layers = {3, 3};
    up.ranks = 2;
    up.followers = {{"d-1", 7}, {"d-2", 7}, {"d-3", 7}};
    Send(up);
  }
  void Granted(const KvGrant& grant) {
    for (int member = 1; member < 4; ++member) {
      Send(MemberGranted{member, grant.slot, grant.generation});
    }
  }
};

TEST_F(StagedGrantsTest, EveryMemberIsGrantedItsOwnLayers) {
  UpStaged();
  Send(Request(1));
  const std::vector<GrantKv> grants = All<GrantKv>();
  ASSERT_EQ(grants.size(), 4u);
  for (size_t member = 0; member < 4; ++member) {
    EXPECT_EQ(grants[member].member, static_cast<int>(member));
    EXPECT_EQ(grants[member].grant.pages, grants[0].grant.pages);
    for (const KvWriter& writer : grants[member].grant.writers) {
      EXPECT_GE(writer.layers.begin, member < 2 ? 0 : 3);
      EXPECT_LE(writer.layers.end, member < 2 ? 3 : 6);
    }
  }
  ASSERT_EQ(grants[0].grant.writers.size(), 2u) << "both have some of its layers";
  EXPECT_EQ(grants[0].grant.writers[1].layers, (LayerRange{2, 3}));
  ASSERT_EQ(grants[2].grant.writers.size(), 1u);
  EXPECT_EQ(grants[2].grant.writers[0].instance.id, "prefill-1");
  EXPECT_TRUE(All<HandOutTicket>().empty());
  Granted(grants[0].grant);
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  const Ticket ticket = All<HandOutTicket>()[0].ticket;
  EXPECT_EQ(ticket.places(), 4);
  EXPECT_EQ(ticket.ranks(), 2);
  EXPECT_EQ(ticket.stages, (std::vector<LayerRange>{{0, 3}, {3, 6}}));
}

TEST_F(StagedGrantsTest, TheFirstTokenIsThatOfWhoDrawsTheNext) {
  UpStaged();
  Send(Request(1));
  const KvGrant grant = All<GrantKv>().at(0).grant;
  Granted(grant);
  const auto commit = [&](int member, std::optional<int32_t> token) {
    std::optional<SampledToken> first;
    if (token.has_value()) first = SampledToken{*token, -1, {}};
    Send(KvHeard{member, KvCommitted{grant.slot, grant.generation, first, 0}});
  };
  commit(2, 41);
  commit(3, 40);
  commit(0, std::nullopt);
  EXPECT_TRUE(All<DeliverToken>().empty()) << "member 1 lacks its heads";
  commit(1, std::nullopt);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_EQ(All<DeliverToken>()[0].token.token, 41);
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_TRUE(plans_[0].opens.at(0).adopted());
}

TEST_F(StagedGrantsTest, ACommitWithoutAFirstTokenEndsItsRequestAlone) {
  UpStaged();
  Send(Request(1));
  const KvGrant grant = All<GrantKv>().at(0).grant;
  Granted(grant);
  for (int member = 0; member < 4; ++member) {
    Send(KvHeard{member, KvCommitted{grant.slot, grant.generation, std::nullopt, 0}});
  }
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsInternal(finished_[0].status));
  for (int member = 0; member < 3; ++member) {
    Send(KvHeard{member, KvDrained{grant.slot, grant.generation}});
  }
  EXPECT_EQ(used(), 2) << "the last stage's second rank may still be written to";
  Send(KvHeard{3, KvDrained{grant.slot, grant.generation}});
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace baton::prefill
