// Steps, what joins them and what stops.
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

TEST_F(DecodeCoreTest, StopRulesApplyToTheFirstTokenToo) {
  const auto first_ends = [this](uint64_t attempt, const auto& change) {
    ReserveRequested request = Request(attempt);
    change(request.stop);
    const Ticket ticket = Reserved(request);
    Handle(StreamOpened{attempt, ticket.generation});
    Commit(ticket, kEos);
    EXPECT_EQ(Take<DeliverToken>().token.token, kEos) << "stop tokens are emitted";
    const auto finish = TryTake<Finish>();
    if (finish.has_value()) {
      EXPECT_EQ(*finish->outcome, FinishReason::kStop);
      Drain(ticket);
    } else {
      const auto step = Take<RunStep>();
      Handle(AbortRequested{attempt, absl::CancelledError("")});
      Take<Finish>();
      FinishStep(step, 1);
      Drain(ticket);
    }
    return finish.has_value();
  };
  EXPECT_TRUE(first_ends(1, [](StopRule&) {}));
  EXPECT_FALSE(first_ends(2, [](StopRule& stop) { stop.ignore_eos = true; }));
  EXPECT_FALSE(first_ends(3, [](StopRule& stop) { stop.min_tokens = 1; }));
  EXPECT_TRUE(first_ends(4, [](StopRule& stop) {
    stop.ignore_eos = true;
    stop.stop_ids = {kEos};
  }));
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, MinTokensDelaysTheStop) {
  ReserveRequested request = Request(1);
  request.stop.min_tokens = 2;
  const Ticket ticket = Reserved(request);
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, kEos);
  FinishStep(Take<RunStep>(), kEos);
  EXPECT_FALSE(TryTake<Finish>().has_value());
  FinishStep(Take<RunStep>(), kEos);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kStop);
}

TEST_F(DecodeCoreTest, RequestsJoinTheBatchBetweenSteps) {
  const Ticket a = Reserved(Request(1));
  const Ticket b = Reserved(Request(2));
  Handle(StreamOpened{1, a.generation});
  Handle(StreamOpened{2, b.generation});
  Commit(a);
  const auto step = Take<RunStep>();
  Commit(b);
  EXPECT_FALSE(TryTake<RunStep>().has_value()) << "one step at a time";
  FinishStep(step, 3);
  const auto next = Take<RunStep>();
  ASSERT_EQ(next.sequences.size(), 2u);
  EXPECT_EQ(next.sequences[0].attempt_id, 1u);
  EXPECT_EQ(next.sequences[1].attempt_id, 2u);
}

TEST_F(DecodeCoreTest, FailedStepEndsItsSequencesAlone) {
  const Ticket a = Reserved(Request(1));
  const Ticket b = Reserved(Request(2));
  Handle(StreamOpened{1, a.generation});
  Handle(StreamOpened{2, b.generation});
  Commit(a);
  const auto step = Take<RunStep>();
  Commit(b);
  actions_.clear();
  Handle(StepFinished{step.step, absl::InternalError("no memory"), {}});
  const auto finish = Take<Finish>();
  EXPECT_EQ(finish.attempt_id, 1u);
  EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
  EXPECT_EQ(Take<RunStep>().sequences[0].attempt_id, 2u);
}

TEST_F(DecodeCoreTest, ErrorsOfOneSequenceEndThatOne) {
  std::vector<Ticket> tickets;
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) {
    tickets.push_back(Reserved(Request(attempt, 4, 4)));
    Handle(StreamOpened{attempt, tickets.back().generation});
  }
  Commit(tickets[0]);
  auto step = Take<RunStep>();
  for (size_t i = 1; i < 4; ++i) Commit(tickets[i]);
  FinishStep(step, 1);
  step = Take<RunStep>();
  actions_.clear();
  StepFinished finished{step.step, absl::OkStatus(), {}};
  finished.outputs.push_back({1, absl::InternalError("NaN")});
  finished.outputs.push_back({2, SampledToken{100, 0, {}}});  // Outside the vocabulary.
  finished.outputs.push_back({4, SampledToken{5, 0, {}}});    // And none for 3.
  Handle(finished);
  std::set<uint64_t> failed;
  while (auto finish = TryTake<Finish>()) {
    EXPECT_TRUE(absl::IsInternal(finish->outcome.status()));
    failed.insert(finish->attempt_id);
  }
  EXPECT_EQ(failed, (std::set<uint64_t>{1, 2, 3}));
  EXPECT_EQ(Take<DeliverToken>().attempt_id, 4u);
}

TEST_F(DecodeCoreTest, PagesOfARunningStepAreHeldUntilItEnds) {
  const Ticket ticket = Reserved(Request(1, 30, 2));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  const auto step = Take<RunStep>();
  Handle(AbortRequested{1, absl::CancelledError("")});
  Take<Finish>();
  actions_.erase(actions_.begin());  // The first token.
  Drain(ticket);
  EXPECT_EQ(core_.load().quarantined_pages, 8) << "drained, but the step still writes to them";
  Handle(Request(2, 20, 4));
  EXPECT_TRUE(actions_.empty());
  FinishStep(step, 50);
  EXPECT_FALSE(TryTake<DeliverToken>().has_value()) << "the output is nobody's";
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 2u);
}

TEST_F(DecodeCoreTest, AttemptMayComeAgainWhileItsOldStepRuns) {
  const Ticket old_ticket = Reserved(Request(1));
  Handle(StreamOpened{1, old_ticket.generation});
  Commit(old_ticket);
  const auto step = Take<RunStep>();
  Handle(AbortRequested{1, absl::CancelledError("")});
  actions_.clear();
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 7);
  EXPECT_EQ(Take<DeliverToken>().token.token, 7);
  FinishStep(step, 50);
  EXPECT_FALSE(TryTake<DeliverToken>().has_value()) << "a token of the old generation";
  EXPECT_EQ(Take<RunStep>().sequences[0].token, 7);
}

TEST_F(DecodeCoreTest, AFailedStepEndsAllOfItsSequencesAndNoOther) {
  std::vector<Ticket> tickets;
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
    tickets.push_back(Reserved(Request(attempt, 4, 4)));
    Handle(StreamOpened{attempt, tickets.back().generation});
  }
  Commit(tickets[0]);
  FinishStep(
      [this, &tickets] {
        auto step = Take<RunStep>();
        Commit(tickets[1]);
        return step;
      }(),
      1);
  const auto step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 2u);
  Commit(tickets[2]);
  actions_.clear();
  StepFinished failed{step.step, absl::InternalError("no memory"), {}};
  failed.outputs.push_back({1, SampledToken{5, 0, {}}});  // Worth nothing.
  Handle(failed);
  EXPECT_FALSE(TryTake<DeliverToken>().has_value());
  for (const uint64_t attempt : {1u, 2u}) {
    const auto finish = Take<Finish>();
    EXPECT_EQ(finish.attempt_id, attempt);
    EXPECT_TRUE(absl::IsInternal(finish.outcome.status()));
  }
  EXPECT_FALSE(TryTake<Finish>().has_value());
  const auto next = Take<RunStep>();
  ASSERT_EQ(next.sequences.size(), 1u);
  EXPECT_EQ(next.sequences[0].attempt_id, 3u);
}

TEST_F(DecodeCoreTest, TheVocabularysEdgesBound) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 99);
  EXPECT_EQ(Take<DeliverToken>().token.token, 99);
  FinishStep(Take<RunStep>(), 99);
  EXPECT_EQ(Take<DeliverToken>().token.token, 99);
  FinishStep(Take<RunStep>(), 0);
  EXPECT_EQ(Take<DeliverToken>().token.token, 0);
  FinishStep(Take<RunStep>(), -1);
  EXPECT_TRUE(absl::IsInternal(Take<Finish>().outcome.status()));
  const Ticket second = Reserved(Request(2));
  Handle(StreamOpened{2, second.generation});
  Commit(second, -1);
  EXPECT_TRUE(absl::IsInternal(Take<Finish>().outcome.status()));
}

TEST_F(DecodeCoreTest, TheNextStepComesBeforeTheTokensOfTheLast) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  const auto step = Take<RunStep>();
  actions_.clear();
  FinishStep(step, 3);
  ASSERT_EQ(actions_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<RunStep>(actions_[0]));
  EXPECT_TRUE(std::holds_alternative<DeliverToken>(actions_[1]));
}

TEST_F(DecodeCoreTest, PagesOfAFinishedStepAreHeldUntilTheTableHasDrained) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  const auto step = Take<RunStep>();
  Handle(AbortRequested{1, absl::CancelledError("")});
  FinishStep(step, 3);
  EXPECT_EQ(core_.load().quarantined_pages, 3) << "a placement may still be under way";
  Drain(ticket);
  EXPECT_EQ(core_.load().free_pages, 10);
}

// Two lives of one attempt, both gone while the step of the first still runs: that step's end gives
// back the first life's pages, and the second's don't wait for it.
TEST_F(DecodeCoreTest, AStepHoldsThePagesOfItsOwnGenerationAlone) {
  const Ticket old_ticket = Reserved(Request(1));
  Handle(StreamOpened{1, old_ticket.generation});
  Commit(old_ticket);
  const auto step = Take<RunStep>();
  Handle(AbortRequested{1, absl::CancelledError("")});
  Drain(old_ticket);
  const Ticket ticket = Reserved(Request(1));
  Handle(AbortRequested{1, absl::CancelledError("")});
  Drain(ticket);
  EXPECT_EQ(core_.load().quarantined_pages, 3) << "the first life's";
  FinishStep(step, 3);
  EXPECT_TRUE(core_.AtRest());
}

// An attempt, its slot and its generation are three numbers, and every action says which is which.
TEST_F(DecodeCoreTest, ActionsNameAttemptSlotAndGeneration) {
  const Ticket other = Reserved(Request(50));
  const Ticket gone = Reserved(Request(60));
  Handle(AbortRequested{60, absl::OkStatus()});
  Take<Finish>();
  const Ticket ticket = Reserved(Request(70));
  EXPECT_EQ(ticket.slot, 2u);
  EXPECT_EQ(ticket.generation, 3u);
  Drain(gone);
  Handle(StreamOpened{70, 9});
  const auto refusal = Take<RefuseStream>();
  EXPECT_EQ(refusal.attempt_id, 70u);
  EXPECT_EQ(refusal.generation, 9u);
  Handle(StreamOpened{70, ticket.generation});
  Commit(ticket, 17);
  EXPECT_EQ(Take<DeliverToken>().attempt_id, 70u);
  const auto step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 1u);
  EXPECT_EQ(step.sequences[0].attempt_id, 70u);
  EXPECT_EQ(step.sequences[0].slot, 2u);
  EXPECT_EQ(step.sequences[0].generation, 3u);
  Handle(AbortRequested{70, absl::OkStatus()});
  EXPECT_EQ(Take<Finish>().attempt_id, 70u);
  Drain(ticket);
  EXPECT_EQ(core_.load().quarantined_pages, 3) << "the step uses them";
  FinishStep(step, 1);
  EXPECT_EQ(core_.load().quarantined_pages, 0);
  EXPECT_EQ(core_.load().owned_pages, 3) << "attempt 50's";
  Commit(other, 4);
  Handle(StreamOpened{50, other.generation});
  const auto kept = Take<DeliverToken>();
  EXPECT_EQ(kept.attempt_id, 50u);
  EXPECT_EQ(kept.index, 0);
}

// Followers take only the step that follows the last one.
TEST_F(DecodeCoreTest, StepsAreNumberedOneByOneFromOneOn) {
  const Ticket ticket = Reserved(Request(1, 6, 5));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  for (uint64_t number = 1; number <= 4; ++number) {
    const auto step = Take<RunStep>();
    EXPECT_EQ(step.step, number);
    const int position = 5 + static_cast<int>(number);
    EXPECT_EQ(step.sequences[0].position, position);
    EXPECT_EQ(step.sequences[0].pages.size(), static_cast<size_t>(position / kPageSize + 1));
    FinishStep(step, 1);
  }
}

TEST_F(DecodeCoreTest, WhoHasNoStreamIsPassedOver) {
  const Ticket first = Reserved(Request(1));
  const Ticket second = Reserved(Request(2));
  Commit(first);
  Handle(StreamOpened{2, second.generation});
  Commit(second);
  const auto step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 1u);
  EXPECT_EQ(step.sequences[0].attempt_id, 2u);
}

TEST_F(DecodeCoreTest, WhoEndsUnderAStepKeepsNobodyFromItsToken) {
  std::vector<Ticket> tickets;
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
    tickets.push_back(Reserved(Request(attempt, 4, 4)));
    Handle(StreamOpened{attempt, tickets.back().generation});
  }
  Commit(tickets[0]);
  auto step = Take<RunStep>();
  Commit(tickets[1]);
  Commit(tickets[2]);
  FinishStep(step, 1);
  step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 3u);
  Handle(AbortRequested{1, absl::OkStatus()});
  actions_.clear();
  FinishStep(step, 2);
  EXPECT_EQ(Take<DeliverToken>().attempt_id, 2u);
  EXPECT_EQ(Take<DeliverToken>().attempt_id, 3u);
  EXPECT_FALSE(TryTake<DeliverToken>().has_value());
  EXPECT_FALSE(TryTake<PartRanks>().has_value());
}

TEST_F(DecodeCoreTest, ATokenThatIsNoneIsNotDelivered) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  const auto step = Take<RunStep>();
  actions_.clear();
  FinishStep(step, 100);
  EXPECT_TRUE(absl::IsInternal(Take<Finish>().outcome.status()));
  EXPECT_FALSE(TryTake<DeliverToken>().has_value());
  EXPECT_FALSE(TryTake<Finish>().has_value());
  EXPECT_FALSE(TryTake<RunStep>().has_value());
}

TEST_F(DecodeCoreTest, OneProcessHasNoRanksToPart) {
  EXPECT_FALSE(core_.may_join());
  EXPECT_TRUE(core_.joined());
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  Handle(StepFinished{Take<RunStep>().step, absl::InternalError("no memory"), {}});
  EXPECT_FALSE(TryTake<PartRanks>().has_value());
}

TEST_F(DecodeCoreTest, LoadCountsEveryState) {
  const Ticket running = Reserved(Request(1, 4, 4));
  Handle(StreamOpened{1, running.generation});
  Commit(running);
  const Ticket ended = Reserved(Request(2, 4, 1));
  Commit(ended);
  Reserved(Request(3, 4, 4));
  Handle(Request(4, 30, 2));
  const DecodeLoad load = core_.load();
  EXPECT_EQ(load.running, 1);
  EXPECT_EQ(load.reserved, 1);
  EXPECT_EQ(load.waiting, 1);
  EXPECT_EQ(load.owned_pages, 4);
  EXPECT_EQ(load.quarantined_pages, 2);
  EXPECT_EQ(load.free_pages, 4);
}

TEST_F(DecodeCoreTest, ACommitCountsOnce) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 5);
  actions_.clear();
  Commit(ticket, 6);
  EXPECT_TRUE(actions_.empty());
}

}  // namespace
}  // namespace baton::decode
