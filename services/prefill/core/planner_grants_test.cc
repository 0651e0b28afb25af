// Requests whose prompt others read: a decode service's.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/planner_grants_fixture.h"

namespace baton::prefill {
namespace {

using Ids = std::vector<int32_t>;

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

}  // namespace
}  // namespace baton::prefill
