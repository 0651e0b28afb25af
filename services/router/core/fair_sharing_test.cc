// Tenants that wait for room share it, and what a queue of one tenant costs the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/fair_queue.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kPromptUs = 150'000;  // What a chain takes for a prompt.

// One pair, whose chain has pages for two prompts.
class FairSharingTest : public RouterCoreTest {
 protected:
  FairSharingTest() { Begin({}); }

  void Begin(RouterLimits limits, int chain_pages = 376) {
    if (limits.max_waiting == 0) limits.max_waiting = 10;
    limits.pairing_timeout_us = kDeadlineUs;
    limits.membership.pair_grace_us = kDeadlineUs;
    Reset(limits);
    WorkerInfo stage = TestStage("c0", 0, 1);
    WorkerInfo decode = TestDecode("d0");
    for (WorkerInfo* worker : {&stage, &decode}) {
      worker->page_count = 4096;
      worker->max_context_tokens = 4096;
      worker->max_running_requests = 64;
    }
    stage.page_count = chain_pages;
    Join({stage, decode});
  }
  void Ask(uint64_t call_id, const std::string& tenant, int prompt_tokens = 3'000) {
    CallSubmitted call{call_id, "r" + std::to_string(call_id), prompt_tokens, 4,
                       now_us_ + 10 * kDeadlineUs};
    call.tenant = tenant;
    Handle(call);
    NoteBegun();
  }
  void NoteBegun() {
    for (const Reserve& reserve : All<Reserve>()) {
      begun_.push_back(reserve.call_id);
      reserves_[reserve.call_id] = reserve;
    }
  }
  // The chain is given the request's prompt.
  StartPrefill Start(uint64_t call_id, int prompt_tokens = 3'000) {
    const Reserve& reserve = reserves_.at(call_id);
    Handle(ReserveReplied{reserve.attempt_id,
                          Ticket{reserve.decode, 0, 5, prompt_tokens, 7, followers_}});
    StartPrefill start = Only<StartPrefill>();
    NoteBegun();
    return start;
  }
  // Its prompt is computed, and its answer is complete.
  void End(uint64_t call_id, int cached_tokens = 0) {
    const uint64_t attempt_id = reserves_.at(call_id).attempt_id;
    now_us_ += kPromptUs;
    Handle(PrefillEnded{attempt_id, absl::OkStatus(), {}, cached_tokens});
    NoteBegun();
    Handle(TokenReceived{attempt_id, {7, 0, {}}});
    NoteBegun();
    Handle(DecodeEnded{attempt_id, FinishReason::kStop});
    NoteBegun();
  }
  void Serve(uint64_t call_id, int prompt_tokens = 3'000, int cached_tokens = 0) {
    Start(call_id, prompt_tokens);
    End(call_id, cached_tokens);
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }

  std::vector<uint64_t> begun_;
  std::map<uint64_t, Reserve> reserves_;
};

// ---- In the router ----

TEST_F(FairSharingTest, AFloodThatWaitsDoesNotKeepAnotherTenantWaiting) {
  for (uint64_t call_id = 1; call_id <= 8; ++call_id) Ask(call_id, "flood");
  ASSERT_THAT(begun_, ElementsAre(1, 2));
  Ask(100, "quiet");
  Ask(101, "quiet");
  Serve(1);
  Serve(2);
  EXPECT_THAT(begun_, ElementsAre(1, 2, 100, 101)) << "six waited before";
  Serve(100);
  Serve(101);
  EXPECT_THAT(begun_, ElementsAre(1, 2, 100, 101, 3, 4));
}

TEST_F(FairSharingTest, WhatWasCachedIsNoWork) {
  Ask(1, "a");
  Ask(2, "b");
  for (const uint64_t call_id : {11, 21}) Ask(call_id, "a");
  for (const uint64_t call_id : {12, 22}) Ask(call_id, "b");
  Serve(1);
  ASSERT_THAT(begun_, ElementsAre(1, 2, 11));
  Serve(2, 3'000, /*cached_tokens=*/2'900);
  Serve(11);
  EXPECT_THAT(begun_, ElementsAre(1, 2, 11, 12, 22)) << "of b little was computed";
}

TEST_F(FairSharingTest, AFullQueueTakesAnotherTenantsRequestForTheLongestsLast) {
  Begin({.max_waiting = 3});
  for (uint64_t call_id = 1; call_id <= 5; ++call_id) Ask(call_id, "flood");
  Ask(6, "flood");
  EXPECT_THAT(Only<FinishCall>().call_id, 6u) << "its own tenant's are no fewer";
  Ask(101, "quiet");
  EXPECT_THAT(Only<FinishCall>().call_id, 5u);
  EXPECT_TRUE(IsOverloaded(Refusal())) << Refusal();
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("gave its place"));
  EXPECT_EQ(core_->load().waiting, 3);
  EXPECT_EQ(core_->load().queue.gave_way_total, 1);
  EXPECT_EQ(core_->load().queue.full_total, 1);
}

TEST_F(FairSharingTest, SoDoesARouterThatServesAsManyAsItMay) {
  Begin({.max_requests = 4});
  for (uint64_t call_id = 1; call_id <= 4; ++call_id) Ask(call_id, "flood");
  Ask(5, "flood");
  EXPECT_THAT(Only<FinishCall>().call_id, 5u);
  Ask(101, "quiet");
  EXPECT_THAT(Only<FinishCall>().call_id, 4u);
  EXPECT_EQ(core_->load().in_flight, 4);
}

// ---- In the chain ----

// What a chain has is put in order there: the router says by how much a prompt goes before.
TEST_F(FairSharingTest, APromptGoesBeforeAFloodsThatTheChainHas) {
  Begin({}, /*chain_pages=*/4096);
  for (uint64_t call_id = 1; call_id <= 5; ++call_id) {
    Ask(call_id, "flood");
    EXPECT_EQ(Start(call_id).head_start_us, 0) << "a tenant alone is served by arrival";
    now_us_ += 1'000;
  }
  now_us_ = 10'000;
  Ask(100, "quiet");
  EXPECT_EQ(Start(100).head_start_us, 10'000 - 1'000 + FairTurns::kUncertainUs)
      << "the first of the flood is computed";
  Ask(101, "quiet");
  EXPECT_EQ(Start(101).head_start_us, 10'000 - 2'000 + FairTurns::kUncertainUs)
      << "it comes behind the second";
  End(100);
  End(101);
  for (uint64_t call_id = 1; call_id <= 5; ++call_id) End(call_id);
  EXPECT_TRUE(core_->AtRest());
}

// Requests overtake one another between the router and the chain.
TEST_F(FairSharingTest, WhichOfAFloodsPromptsIsComputedFirstIsNoMatter) {
  Begin({}, /*chain_pages=*/4096);
  for (uint64_t call_id = 1; call_id <= 12; ++call_id) Ask(call_id, "flood");
  for (uint64_t call_id = 1; call_id <= 12; ++call_id) Start(call_id);
  End(12);
  End(1);
  Ask(100, "quiet");
  EXPECT_GT(Start(100).head_start_us, kPromptUs) << "behind what is computed, and no more";
}

// ---- --max-queue-ms ----

TEST_F(FairSharingTest, ARequestWaitsForRoomNoLongerThanItMay) {
  Begin({.max_queue_us = 50'000});
  for (uint64_t call_id = 1; call_id <= 3; ++call_id) Ask(call_id, "a");
  EXPECT_EQ(core_->NextDeadlineUs(), 50'000);
  now_us_ = 50'000;
  Handle(Tick{});
  EXPECT_EQ(Only<FinishCall>().call_id, 3u);
  EXPECT_TRUE(IsOverloaded(Refusal())) << Refusal();
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("--max-queue-ms"));
  EXPECT_EQ(core_->load().queue.waited_total, 1);
}

TEST_F(FairSharingTest, WhatWouldWaitForTooLongIsRefusedAtOnce) {
  Begin({.max_queue_us = 400'000});
  for (uint64_t call_id = 1; call_id <= 5; ++call_id) Ask(call_id, "a");
  EXPECT_THAT(All<FinishCall>(), IsEmpty()) << "how fast the queue moves is not known yet";
  Serve(1);
  ASSERT_THAT(begun_, ElementsAre(1, 2, 3));
  Ask(6, "a");
  EXPECT_EQ(Only<FinishCall>().call_id, 6u) << "two are before it, and one leaves in 150 ms";
  EXPECT_EQ(RetryHintMsOf(Refusal()), 50);
  Ask(7, "b");
  EXPECT_THAT(All<FinishCall>(), IsEmpty()) << "before b's there is one of a's";
  CallSubmitted urgent{8, "r8", 3'000, 4, now_us_ + 250'000};
  urgent.tenant = "b";
  Handle(urgent);
  EXPECT_EQ(Only<FinishCall>().call_id, 8u) << "its deadline comes before its turn";
  EXPECT_EQ(core_->load().queue.predicted_total, 2);
}

}  // namespace
}  // namespace baton::router
