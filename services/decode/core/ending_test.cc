// The ways out, and when pages come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/random.h"
#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

using testing::HasSubstr;

TEST_F(DecodeCoreTest, AbortInEveryState) {
  Handle(AbortRequested{1, absl::CancelledError("early")});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(absl::IsCancelled(Refused(Request(1)))) << "the abort overtook it";

  const Ticket reserved = Reserved(Request(2, 30, 2));
  Handle(Request(3, 20, 4));
  Handle(AbortRequested{3, absl::CancelledError("waiting")});
  EXPECT_TRUE(absl::IsCancelled(Take<ReplyReserve>().ticket.status()));
  EXPECT_EQ(core_.load().waiting, 0);

  Handle(AbortRequested{2, absl::UnavailableError("prefill failed")});
  EXPECT_TRUE(absl::IsUnavailable(Take<Finish>().outcome.status())) << "the reason is passed on";
  Commit(reserved);  // Was on its way.
  EXPECT_FALSE(TryTake<DeliverToken>().has_value());
  Drain(reserved);

  const Ticket kept = Reserved(Request(4, 6, 1));
  Commit(kept);
  Handle(AbortRequested{4, absl::CancelledError("")});
  EXPECT_TRUE(absl::IsCancelled(Take<Finish>().outcome.status()));
  Drain(kept);
  Handle(AbortRequested{4, absl::CancelledError("again")});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, FailedHandOffEndsTheRequest) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Handle(KvFailed{ticket.slot, ticket.generation,
                  WithLeg(absl::DataLossError("checksum"), "prefill", "prefill-1")});
  const auto finish = Take<Finish>();
  EXPECT_TRUE(absl::IsDataLoss(finish.outcome.status()));
  EXPECT_EQ(InstanceOf(finish.outcome.status()), "prefill-1");
  EXPECT_EQ(core_.load().quarantined_pages, 3);
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, FailureBeforeTheStreamIsKeptForIt) {
  const Ticket ticket = Reserved(Request(1));
  Handle(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
  Drain(ticket);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(core_.load().free_pages, 10) << "it holds nothing but its outcome";
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(absl::IsDataLoss(Take<Finish>().outcome.status()));
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, KeptOutcomesAreBounded) {
  uint64_t attempt = 1;
  for (; !TryTake<Finish>().has_value(); ++attempt) {
    ASSERT_LT(attempt, 5000u);
    const Ticket ticket = Reserved(Request(attempt));
    Handle(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
    Drain(ticket);
  }
  EXPECT_EQ(attempt - 1, 1025u);
  Handle(StreamOpened{1, 1});
  EXPECT_TRUE(absl::IsNotFound(Take<RefuseStream>().status)) << "the oldest went";
  Handle(StreamOpened{2, 2});
  EXPECT_TRUE(absl::IsDataLoss(Take<Finish>().outcome.status()));
}

TEST_F(DecodeCoreTest, OutcomesThatStreamsHaveFetchedAreNotCounted) {
  for (uint64_t attempt = 1; attempt <= 1100; ++attempt) {
    const Ticket ticket = Reserved(Request(attempt));
    Handle(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
    Drain(ticket);
    EXPECT_FALSE(core_.AtRest()) << "an outcome is kept";
    Handle(StreamOpened{attempt, ticket.generation});
    ASSERT_TRUE(absl::IsDataLoss(Take<Finish>().outcome.status()));
    const Ticket open = Reserved(Request(5000 + attempt, 6, 1));
    Handle(StreamOpened{5000 + attempt, open.generation});
    Commit(open);
    ASSERT_TRUE(Take<Finish>().outcome.ok());
    Drain(open);
    actions_.clear();
  }
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, FirstTokenOutsideTheVocabularyEndsTheRequest) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 100);
  EXPECT_TRUE(absl::IsInternal(Take<Finish>().outcome.status()));
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, EveryStateEndsAtItsDeadline) {
  const auto with_deadline = [](ReserveRequested request, int64_t deadline_us) {
    request.deadline_us = deadline_us;
    return request;
  };
  const Ticket reserved = Reserved(with_deadline(Request(1, 4, 4), 100));
  const Ticket running = Reserved(with_deadline(Request(2, 4, 4), 200));
  Reserved(with_deadline(Request(3, 20, 4), 400));
  Handle(StreamOpened{2, running.generation});
  Commit(running);
  const auto step = Take<RunStep>();
  Handle(with_deadline(Request(4, 20, 4), 300));
  EXPECT_EQ(core_.load().waiting, 1);
  EXPECT_EQ(core_.NextDeadlineUs(), 100);
  now_us_ = 100;
  Handle(Tick{});
  EXPECT_EQ(Take<Finish>().attempt_id, 1u);
  Drain(reserved);
  EXPECT_EQ(core_.NextDeadlineUs(), 200);
  now_us_ = 300;
  Handle(Tick{});
  const auto finish = Take<Finish>();
  EXPECT_EQ(finish.attempt_id, 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(finish.outcome.status()));
  EXPECT_THAT(std::string(finish.outcome.status().message()), HasSubstr("while decoding"));
  const absl::Status waiting = Take<ReplyReserve>().ticket.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting));
  EXPECT_THAT(std::string(waiting.message()), HasSubstr("while waiting for pages"));
  FinishStep(step, 1);
  EXPECT_EQ(core_.NextDeadlineUs(), 400);
}

TEST_F(DecodeCoreTest, AllThatIsOverdueEndsAtOnce) {
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) Reserved(Request(attempt, 4, 4));
  now_us_ = Limits().stream_lease_us;
  Handle(Tick{});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(Take<Finish>().outcome.status()));
  }
  EXPECT_FALSE(TryTake<Finish>().has_value()) << "each once";
}

// Neither by its deadline nor by its lease, before its ticket, with it or with its stream.
TEST_F(DecodeCoreTest, WhoHasEndedIsNotWaitedFor) {
  const auto request = [](uint64_t attempt, int prompt) {
    ReserveRequested with_deadline = Request(attempt, prompt, 4);
    with_deadline.deadline_us = 1000 + static_cast<int64_t>(attempt);
    return with_deadline;
  };
  const Ticket opened = Reserved(request(1, 4));
  Handle(StreamOpened{1, opened.generation});
  Reserved(request(2, 20));
  Handle(request(3, 20));
  EXPECT_EQ(core_.NextDeadlineUs(), 1001);
  for (const uint64_t attempt : {1u, 2u, 3u}) Handle(AbortRequested{attempt, absl::OkStatus()});
  EXPECT_EQ(core_.NextDeadlineUs(), kNeverUs);
  actions_.clear();
  now_us_ = 10'000'000;
  Handle(Tick{});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DecodeCoreTest, AnAbortThatCameFirstEndsOneReserve) {
  Handle(AbortRequested{1, absl::OkStatus()});
  EXPECT_TRUE(absl::IsCancelled(Refused(Request(1))));
  Reserved(Request(1));
}

TEST_F(DecodeCoreTest, TheOldestOfManyEarlyAbortsAreForgotten) {
  for (uint64_t attempt = 1; attempt <= 1025; ++attempt) {
    Handle(AbortRequested{attempt, absl::OkStatus()});
  }
  Reserved(Request(1));
  EXPECT_TRUE(absl::IsCancelled(Refused(Request(2))));
  EXPECT_TRUE(absl::IsCancelled(Refused(Request(1025))));
}

TEST_F(DecodeCoreTest, AFirstTokenThatIsNoneIsTheLastStagesFault) {
  const Ticket ticket = Reserved(Request(1));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 100);
  const absl::Status status = Take<Finish>().outcome.status();
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "prefill-1");
}

TEST_F(DecodeCoreTest, AFailureOfAnEndedGrantIsNobodys) {
  const Ticket ticket = Reserved(Request(1));
  Handle(AbortRequested{1, absl::OkStatus()});
  Take<Finish>();
  Handle(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
  EXPECT_FALSE(TryTake<Finish>().has_value());
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, WhatIsOverdueEndsBeforeAnEventOfTheSameMoment) {
  ReserveRequested request = Request(1);
  request.deadline_us = 100;
  const Ticket ticket = Reserved(request);
  Handle(StreamOpened{1, ticket.generation});
  now_us_ = 100;
  Commit(ticket);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take<Finish>().outcome.status()));
  EXPECT_FALSE(TryTake<DeliverToken>().has_value());
}

// Every interleaving of a random crowd ends at rest, with one terminal action per request.
TEST_F(DecodeCoreTest, RandomCrowdsEndAtRest) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    DecodeCore core(Limits());
    Random random(seed);
    std::vector<Action> actions;
    std::map<uint64_t, int> terminals;
    std::vector<Event> pending;  // Answers that the shell would give, in any order.
    uint64_t next_attempt = 1;
    for (int round = 0; round < 400; ++round) {
      const bool closing = round > 250;
      if (!closing && random.Chance(0.2)) {
        auto request = Request(next_attempt++, static_cast<int>(random.Between(1, 20)),
                               static_cast<int>(random.Between(1, 6)));
        request.deadline_us = round + random.Between(10, 80);
        pending.emplace_back(request);
      } else if (!closing && random.Chance(0.05)) {
        pending.emplace_back(
            AbortRequested{1 + random.Below(next_attempt), absl::CancelledError("")});
      }
      Event event = Tick{};
      if (!pending.empty() && random.Chance(0.8)) {
        const size_t pick = random.Below(pending.size());
        event = pending[pick];
        pending.erase(pending.begin() + static_cast<long>(pick));
      }
      actions.clear();
      core.Handle(event, round, actions);
      ASSERT_TRUE(core.CheckInvariants().ok()) << "seed " << seed << core.CheckInvariants();
      for (const Action& action : actions) {
        if (const auto* reply = std::get_if<ReplyReserve>(&action)) {
          if (!reply->ticket.ok()) {
            ++terminals[reply->attempt_id];
            continue;
          }
          const Ticket& ticket = *reply->ticket;
          pending.emplace_back(StreamOpened{reply->attempt_id, ticket.generation});
          if (random.Chance(0.2)) {
            pending.emplace_back(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("")});
          } else {
            pending.emplace_back(KvCommitted{ticket.slot, ticket.generation,
                                             SampledToken{static_cast<int32_t>(random.Below(12))},
                                             0});
          }
        } else if (const auto* revoke = std::get_if<RevokeKv>(&action)) {
          pending.emplace_back(KvDrained{revoke->slot, revoke->generation});
        } else if (const auto* step = std::get_if<RunStep>(&action)) {
          StepFinished finished{step->step, absl::OkStatus(), {}};
          for (const auto& sequence : step->sequences) {
            finished.outputs.push_back(
                {sequence.attempt_id, SampledToken{static_cast<int32_t>(random.Below(12)), 0, {}}});
          }
          pending.emplace_back(finished);
        } else if (const auto* finish = std::get_if<Finish>(&action)) {
          ++terminals[finish->attempt_id];
        }
      }
    }
    EXPECT_TRUE(core.AtRest()) << "seed " << seed;
    for (uint64_t attempt = 1; attempt < next_attempt; ++attempt) {
      EXPECT_EQ(terminals[attempt], 1) << "seed " << seed << " attempt " << attempt;
    }
  }
}

}  // namespace
}  // namespace baton::decode
