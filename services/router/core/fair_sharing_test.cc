// Tenants that wait for room share it, and what a queue of one tenant costs the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPromptUs = 150'000;  // What a chain takes for a prompt.

// One pair, whose chain is given more than a prompt at once only while one tenant is here.
class FairSharingTest : public RouterCoreTest {
 protected:
  FairSharingTest() { Begin({}); }

  void Begin(RouterLimits limits) {
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
  // The request's prompt is computed, and its answer is complete.
  void Serve(uint64_t call_id, int prompt_tokens = 3'000, int cached_tokens = 0) {
    const Reserve reserve = reserves_.at(call_id);
    Handle(ReserveReplied{reserve.attempt_id,
                          Ticket{reserve.decode, 0, 5, prompt_tokens, 7, followers_}});
    NoteBegun();
    now_us_ += kPromptUs;
    Handle(PrefillEnded{reserve.attempt_id, absl::OkStatus(), {}, cached_tokens});
    NoteBegun();
    Handle(TokenReceived{reserve.attempt_id, {7, 0, {}}});
    NoteBegun();
    Handle(DecodeEnded{reserve.attempt_id, FinishReason::kStop});
    NoteBegun();
  }
  absl::Status Refusal() const { return Only<FinishCall>().outcome.status(); }

  std::vector<uint64_t> begun_;
  std::map<uint64_t, Reserve> reserves_;
};

TEST_F(FairSharingTest, ATenantAloneIsGivenToWorkersAtOnce) {
  for (uint64_t call_id = 1; call_id <= 8; ++call_id) Ask(call_id, "a");
  EXPECT_THAT(begun_, SizeIs(8));
}

// What came before the other tenant is with the chain. From then on prompts wait here, and each
// tenant has its turn.
TEST_F(FairSharingTest, AFloodDoesNotKeepAnotherTenantWaiting) {
  Ask(1, "flood");
  Ask(100, "quiet");
  for (uint64_t call_id = 2; call_id <= 8; ++call_id) Ask(call_id, "flood");
  ASSERT_THAT(begun_, ElementsAre(1, 100)) << "a chain has one prompt behind another";
  Ask(101, "quiet");
  Serve(1);
  Serve(100);
  EXPECT_THAT(begun_, ElementsAre(1, 100, 2, 101)) << "seven waited before it";
}

TEST_F(FairSharingTest, WhenTheOtherIsThroughTheChainIsGivenAll) {
  Ask(1, "flood");
  Ask(100, "quiet");
  for (uint64_t call_id = 2; call_id <= 6; ++call_id) Ask(call_id, "flood");
  Handle(ClientGone{100});
  NoteBegun();
  EXPECT_THAT(begun_, ElementsAre(1, 100, 2, 3, 4, 5, 6));
}

TEST_F(FairSharingTest, WhatWasCachedIsNoWork) {
  Ask(1, "a");
  Ask(2, "b");
  Ask(11, "a");
  Ask(12, "b");
  Serve(1);
  ASSERT_THAT(begun_, ElementsAre(1, 2, 11));
  Ask(21, "a");
  Serve(2, 3'000, /*cached_tokens=*/2'900);
  Serve(11);
  EXPECT_THAT(begun_, ElementsAre(1, 2, 11, 12, 21));
  Ask(22, "b");
  Ask(23, "b");
  Ask(31, "a");
  Serve(12, 3'000, 2'900);
  Serve(21);
  EXPECT_THAT(begun_, ElementsAre(1, 2, 11, 12, 21, 22, 23)) << "of b little was computed";
}

TEST_F(FairSharingTest, AFullQueueTakesAnotherTenantsRequestForTheLongestsLast) {
  Begin({.max_waiting = 3});
  Ask(1, "flood");
  Ask(100, "other");
  for (uint64_t call_id = 2; call_id <= 4; ++call_id) Ask(call_id, "flood");
  Ask(5, "flood");
  EXPECT_THAT(Only<FinishCall>().call_id, 5u) << "its own tenant's are no fewer";
  Ask(101, "quiet");
  EXPECT_THAT(Only<FinishCall>().call_id, 4u);
  EXPECT_TRUE(IsOverloaded(Refusal())) << Refusal();
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("gave its place"));
  EXPECT_EQ(core_->load().waiting, 3);
  EXPECT_EQ(core_->load().queue.gave_way_total, 1);
  EXPECT_EQ(core_->load().queue.full_total, 1);
}

TEST_F(FairSharingTest, SoDoesARouterThatServesAsManyAsItMay) {
  Begin({.max_requests = 4});
  Ask(1, "flood");
  Ask(100, "other");
  Ask(2, "flood");
  Ask(3, "flood");
  Ask(4, "flood");
  EXPECT_THAT(Only<FinishCall>().call_id, 4u);
  Ask(101, "quiet");
  EXPECT_THAT(Only<FinishCall>().call_id, 3u);
  EXPECT_EQ(core_->load().in_flight, 4);
}

// ---- --max-queue-ms ----

TEST_F(FairSharingTest, ARequestWaitsForRoomNoLongerThanItMay) {
  Begin({.max_queue_us = 50'000});
  Ask(1, "a");
  Ask(2, "b");
  Ask(3, "a");
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
  Ask(1, "a");
  Ask(2, "b");
  Ask(3, "a");
  Ask(4, "a");
  Ask(5, "a");
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
