#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

class DrainTest : public DecodeCoreTest {
 protected:
  void BeginDrain(int64_t deadline_us) { Handle(DrainBegan{deadline_us}); }
};

TEST_F(DrainTest, RefusesWhatComesAndFinishesWhatRuns) {
  const Ticket ticket = Reserved(Request(1, 6, 2));
  BeginDrain(1'000'000);
  EXPECT_TRUE(core_.draining());
  const absl::Status refusal = Refused(Request(2));
  EXPECT_TRUE(absl::IsUnavailable(refusal) && IsEndedByDrain(refusal)) << refusal;
  EXPECT_EQ(LegOf(refusal), "decode");
  EXPECT_EQ(core_.drain_counts().refused_total, 1);

  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  FinishStep(Take<RunStep>(), 3);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
  EXPECT_EQ(core_.NextDeadlineUs(), kNeverUs);
}

TEST_F(DrainTest, GivesBackWhatWaitsForPages) {
  const Ticket ticket = Reserved(Request(1, 30, 8));
  Handle(Request(2, 30, 8));
  EXPECT_EQ(core_.load().waiting, 1);
  BeginDrain(1'000'000);
  const absl::Status back = Take<ReplyReserve>().ticket.status();
  EXPECT_TRUE(IsEndedByDrain(back)) << back;
  EXPECT_EQ(core_.drain_counts().handed_back_total, 1);
  Handle(AbortRequested{1, absl::OkStatus()});
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DrainTest, EndsAtTheDeadlineWhatIsNotDone) {
  const Ticket running = Reserved(Request(1));
  const Ticket reserved = Reserved(Request(2));
  Handle(StreamOpened{1, running.generation});
  Handle(StreamOpened{2, reserved.generation});
  Commit(running);
  const RunStep step = Take<RunStep>();
  BeginDrain(1'000'000);
  BeginDrain(5'000'000);  // The earlier deadline counts.
  EXPECT_EQ(core_.NextDeadlineUs(), 1'000'000);
  now_us_ = 1'000'000;
  Handle(Tick{});
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Take<Finish>().outcome.status();
    EXPECT_TRUE(absl::IsUnavailable(status) && IsEndedByDrain(status)) << status;
    EXPECT_GT(RetryAfterMsOf(status), 0);
  }
  EXPECT_EQ(core_.drain_counts().time_over_total, 2);
  Drain(running);
  Drain(reserved);
  EXPECT_FALSE(core_.AtRest()) << "the step still reads its pages";
  FinishStep(step, 3);
  EXPECT_TRUE(core_.AtRest());
}

// The router has the ticket, and learns of the drain only when it opens the stream.
TEST_F(DrainTest, TellsAStreamThatComesTooLateThatADrainEndedIt) {
  const Ticket ticket = Reserved(Request(1));
  BeginDrain(now_us_);
  Drain(ticket);
  actions_.clear();
  Handle(StreamOpened{1, ticket.generation});
  const absl::Status status = Take<RefuseStream>().status;
  EXPECT_TRUE(absl::IsUnavailable(status) && IsEndedByDrain(status)) << status;
}

TEST_F(DrainTest, WithoutTimeItEndsEverythingAtOnce) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  BeginDrain(now_us_);
  EXPECT_TRUE(IsEndedByDrain(Take<Finish>().outcome.status()));
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DrainTest, TheEarliestEndIsWaitedFor) {
  ReserveRequested request = Request(1);
  request.deadline_us = 100;
  const Ticket ticket = Reserved(request);
  BeginDrain(2'000'000);
  EXPECT_EQ(core_.NextDeadlineUs(), 100);
  Handle(StreamOpened{1, ticket.generation});
  BeginDrain(50);
  EXPECT_EQ(core_.NextDeadlineUs(), 50);
}

TEST_F(DrainTest, EveryoneInTheQueueIsHandedBack) {
  Reserved(Request(1, 30, 8));
  Handle(Request(2, 30, 8));
  Handle(Request(3, 30, 8));
  BeginDrain(1'000'000);
  EXPECT_TRUE(IsEndedByDrain(Take<ReplyReserve>().ticket.status()));
  EXPECT_TRUE(IsEndedByDrain(Take<ReplyReserve>().ticket.status()));
  EXPECT_EQ(core_.drain_counts().handed_back_total, 2);
  EXPECT_EQ(core_.load().waiting, 0);
  EXPECT_EQ(core_.load().reserved, 1) << "who has a ticket goes on";
}

}  // namespace
}  // namespace baton::decode
