#include "services/decode/core/decode_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/random.h"
#include "common/base/status.h"

namespace baton::decode {
namespace {

constexpr int kPageSize = 4;
constexpr int32_t kEos = 9;
const InstanceRef kSelf{"decode-0", 100};
const std::vector<KvWriter> kWriters{{{"prefill-0", 1}, {0, 2}}, {{"prefill-1", 2}, {2, 6}}};

DecodeLimits Limits() {
  return {.self = kSelf,
          .layout = {.layers = 6, .kv_heads = 1, .head_dim = 1, .page_size = kPageSize},
          .page_count = 10,
          .max_running_requests = 4,
          .max_queued_requests = 2,
          .max_context_tokens = 64,
          .vocab_size = 100};
}

class DecodeCoreTest : public testing::Test {
 protected:
  // Handles an event and checks the invariants; actions are appended to those not yet taken.
  void Do(const Event& event) {
    core_.Handle(event, now_us_, actions_);
    ASSERT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
  }

  // The oldest action of type T that has not been taken; it is taken now. Throws, which fails the
  // test, if there is none.
  template <typename T>
  T Take() {
    return TryTake<T>().value();
  }
  template <typename T>
  std::optional<T> TryTake() {
    for (auto it = actions_.begin(); it != actions_.end(); ++it) {
      if (!std::holds_alternative<T>(*it)) continue;
      T action = std::get<T>(std::move(*it));
      actions_.erase(it);
      return action;
    }
    return std::nullopt;
  }

  static ReserveRequested Request(uint64_t attempt, int prompt = 6, int max_tokens = 5) {
    ReserveRequested request;
    request.attempt_id = attempt;
    request.prompt_tokens = prompt;
    request.stop.max_tokens = max_tokens;
    request.stop.eos_ids = {kEos};
    request.writers = kWriters;
    return request;
  }
  // Reserves and expects a ticket at once.
  Ticket Reserved(const ReserveRequested& request) {
    Do(request);
    grant_ = Take<GrantKv>().grant;
    auto reply = Take<ReplyReserve>();
    EXPECT_TRUE(reply.ticket.ok()) << reply.ticket.status();
    return reply.ticket.value_or(Ticket{});
  }
  absl::Status Refused(const ReserveRequested& request) {
    Do(request);
    return Take<ReplyReserve>().ticket.status();
  }
  void Commit(const Ticket& ticket, int32_t first_token = 1) {
    Do(KvCommitted{ticket.slot, ticket.generation, {first_token, -1, {}}, 0});
  }
  // Answers the running step with `token` for every sequence.
  void FinishStep(const RunStep& step, int32_t token) {
    StepFinished finished{step.step, absl::OkStatus(), {}};
    for (const auto& sequence : step.sequences) {
      finished.outputs.push_back({sequence.attempt_id, SampledToken{token, -1, {}}});
    }
    Do(finished);
  }
  void Drain(const Ticket& ticket) {
    const auto revoke = Take<RevokeKv>();
    EXPECT_EQ(revoke.slot, ticket.slot);
    EXPECT_EQ(revoke.generation, ticket.generation);
    Do(KvDrained{ticket.slot, ticket.generation});
  }

  DecodeCore core_{Limits()};
  int64_t now_us_ = 0;
  std::vector<Action> actions_;
  KvGrant grant_;
};

TEST_F(DecodeCoreTest, ARequestFromReservationToRest) {
  const Ticket ticket = Reserved(Request(1, /*prompt=*/6, /*max_tokens=*/3));
  EXPECT_EQ(ticket.decode, kSelf);
  EXPECT_EQ(ticket.prompt_tokens, 6);
  EXPECT_EQ(ticket.prompt_pages, 2);
  EXPECT_EQ(grant_.pages.size(), 2u) << "writers get the prompt's pages alone";
  EXPECT_EQ(core_.load().owned_pages, 3) << "6 + 3 tokens";
  Do(StreamOpened{1, ticket.generation});
  Commit(ticket, 17);
  EXPECT_EQ(Take<EmitToken>().token.token, 17);

  auto step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 1u);
  EXPECT_EQ(step.sequences[0].token, 17);
  EXPECT_EQ(step.sequences[0].position, 6);
  EXPECT_EQ(step.sequences[0].generated, 1);
  EXPECT_EQ(step.sequences[0].pages.size(), 2u);
  FinishStep(step, 18);
  const auto emitted = Take<EmitToken>();
  EXPECT_EQ(emitted.index, 1);
  EXPECT_EQ(emitted.token.token, 18);

  step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].position, 7);
  FinishStep(step, 19);
  EXPECT_EQ(Take<EmitToken>().token.token, 19);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  EXPECT_FALSE(core_.AtRest());
  EXPECT_EQ(core_.load().quarantined_pages, 3);
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DecodeCoreTest, GrantComesBeforeTheTicket) {
  Do(Request(1));
  ASSERT_EQ(actions_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<GrantKv>(actions_[0]));
  EXPECT_TRUE(std::holds_alternative<ReplyReserve>(actions_[1]));
}

TEST_F(DecodeCoreTest, RefusesMalformedReservations) {
  EXPECT_EQ(FieldOf(Refused(Request(0))), "attempt_id");
  EXPECT_EQ(FieldOf(Refused(Request(1, 0))), "prompt_token_ids");
  EXPECT_EQ(FieldOf(Refused(Request(1, 64))), "prompt_token_ids");
  EXPECT_EQ(FieldOf(Refused(Request(1, 6, 0))), "sampling.max_tokens");
  const std::vector<std::vector<LayerRange>> bad_covers{
      {}, {{0, 2}}, {{0, 2}, {3, 6}}, {{0, 3}, {2, 6}}, {{0, 7}}, {{0, 6}, {0, 6}}, {{-1, 6}}};
  for (const auto& ranges : bad_covers) {
    ReserveRequested request = Request(1);
    request.writers.clear();
    for (const LayerRange& range : ranges) request.writers.push_back({{"p", 1}, range});
    EXPECT_EQ(FieldOf(Refused(request)), "writers");
  }
  ReserveRequested nameless = Request(1);
  nameless.writers[0].instance.incarnation = 0;
  EXPECT_EQ(FieldOf(Refused(nameless)), "writers");
  now_us_ = 10;
  ReserveRequested late = Request(1);
  late.deadline_us = 10;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Refused(late)));
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, LargerThanThePoolIsRefusedAtOnce) {
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(Request(1, 40, 1))));
  Reserved(Request(2, 39, 1));
}

TEST_F(DecodeCoreTest, ContextBoundsTheReservation) {
  DecodeLimits limits = Limits();
  limits.max_context_tokens = 12;
  DecodeCore core(limits);
  core.Handle(Request(1, 6, 1'000'000'000), 0, actions_);
  EXPECT_TRUE(Take<ReplyReserve>().ticket.ok());
  EXPECT_EQ(core.load().owned_pages, 3);
}

TEST_F(DecodeCoreTest, WaitingIsFirstComeFirstServed) {
  const Ticket first = Reserved(Request(1, 30, 2));
  Do(Request(2, 20, 4));
  Do(Request(3, 1, 1));
  EXPECT_TRUE(actions_.empty()) << "the small one doesn't overtake";
  EXPECT_EQ(core_.load().waiting, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(Request(4)))) << "the queue is full";
  Do(AbortRequested{1, absl::CancelledError("gone")});
  EXPECT_TRUE(absl::IsCancelled(Take<Finish>().outcome.status()));
  EXPECT_FALSE(TryTake<GrantKv>().has_value()) << "pages are in quarantine";
  Drain(first);
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 2u);
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 3u);
}

TEST_F(DecodeCoreTest, SlotsBoundTheReservations) {
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Reserved(Request(attempt, 1, 1));
  Do(Request(5, 1, 1));
  EXPECT_EQ(core_.load().waiting, 1);
}

TEST_F(DecodeCoreTest, DuplicateAttemptIsRefusedAndHarmless) {
  const Ticket ticket = Reserved(Request(1));
  EXPECT_TRUE(absl::IsAlreadyExists(Refused(Request(1))));
  Do(StreamOpened{1, ticket.generation});
  Commit(ticket);
  EXPECT_EQ(Take<EmitToken>().attempt_id, 1u);
}

TEST_F(DecodeCoreTest, StreamsAreRefusedWithoutHarm) {
  const auto refusal = [this](uint64_t attempt, uint64_t generation) {
    Do(StreamOpened{attempt, generation});
    return Take<RefuseStream>().status.code();
  };
  EXPECT_EQ(refusal(1, 1), absl::StatusCode::kNotFound);
  const Ticket ticket = Reserved(Request(1));
  EXPECT_EQ(refusal(1, ticket.generation + 1), absl::StatusCode::kFailedPrecondition);
  Do(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(refusal(1, ticket.generation), absl::StatusCode::kAlreadyExists);
  Commit(ticket);
  Take<EmitToken>();
  Take<RunStep>();
}

TEST_F(DecodeCoreTest, NothingIsComputedWithoutAStream) {
  const Ticket ticket = Reserved(Request(1));
  Commit(ticket, 5);
  EXPECT_TRUE(actions_.empty());
  Do(StreamOpened{1, ticket.generation});
  EXPECT_EQ(Take<EmitToken>().token.token, 5);
  Take<RunStep>();
}

TEST_F(DecodeCoreTest, FinishIsKeptUntilTheStreamOpens) {
  const Ticket ticket = Reserved(Request(1, 6, 1));
  Commit(ticket, 5);
  Drain(ticket);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(core_.load().owned_pages, 0) << "an ended request holds no pages";
  Do(StreamOpened{1, ticket.generation});
  EXPECT_EQ(Take<EmitToken>().index, 0);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, KeptFinishEndsAtTheDeadline) {
  ReserveRequested request = Request(1, 6, 1);
  request.deadline_us = 100;
  const Ticket ticket = Reserved(request);
  Commit(ticket);
  Drain(ticket);
  now_us_ = 100;
  Do(Tick{});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take<Finish>().outcome.status()));
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, AReservationWhoseStreamNeverOpensEndsWithItsLease) {
  const Ticket ticket = Reserved(Request(1));
  EXPECT_EQ(core_.NextDeadlineUs(), Limits().stream_lease_us);
  const int64_t commit_us = Limits().stream_lease_us - 1;
  now_us_ = commit_us;
  Commit(ticket);
  EXPECT_EQ(core_.load().running, 1) << "a commit doesn't stand for a stream";
  now_us_ = Limits().stream_lease_us;
  Do(Tick{});
  const absl::Status status = Take<Finish>().outcome.status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("stream was not opened"));
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
  Do(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(absl::IsNotFound(Take<RefuseStream>().status)) << "it comes too late";
}

TEST_F(DecodeCoreTest, AnOpenStreamEndsTheLease) {
  const Ticket ticket = Reserved(Request(1));
  now_us_ = Limits().stream_lease_us - 1;
  Do(StreamOpened{1, ticket.generation});
  EXPECT_EQ(core_.NextDeadlineUs(), kNeverUs);
  now_us_ = Limits().stream_lease_us * 10;
  Commit(ticket);
  EXPECT_EQ(Take<EmitToken>().index, 0);
}

TEST_F(DecodeCoreTest, StopRulesApplyToTheFirstTokenToo) {
  const auto first_ends = [this](uint64_t attempt, const auto& change) {
    ReserveRequested request = Request(attempt);
    change(request.stop);
    const Ticket ticket = Reserved(request);
    Do(StreamOpened{attempt, ticket.generation});
    Commit(ticket, kEos);
    EXPECT_EQ(Take<EmitToken>().token.token, kEos) << "stop tokens are emitted";
    const auto finish = TryTake<Finish>();
    if (finish.has_value()) {
      EXPECT_EQ(*finish->outcome, FinishReason::kStop);
      Drain(ticket);
    } else {
      const auto step = Take<RunStep>();
      Do(AbortRequested{attempt, absl::CancelledError("")});
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
  Do(StreamOpened{1, ticket.generation});
  Commit(ticket, kEos);
  FinishStep(Take<RunStep>(), kEos);
  EXPECT_FALSE(TryTake<Finish>().has_value());
  FinishStep(Take<RunStep>(), kEos);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kStop);
}

TEST_F(DecodeCoreTest, RequestsJoinTheBatchBetweenSteps) {
  const Ticket a = Reserved(Request(1));
  const Ticket b = Reserved(Request(2));
  Do(StreamOpened{1, a.generation});
  Do(StreamOpened{2, b.generation});
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
  Do(StreamOpened{1, a.generation});
  Do(StreamOpened{2, b.generation});
  Commit(a);
  const auto step = Take<RunStep>();
  Commit(b);
  actions_.clear();
  Do(StepFinished{step.step, absl::InternalError("no memory"), {}});
  const auto finish = Take<Finish>();
  EXPECT_EQ(finish.attempt_id, 1u);
  EXPECT_EQ(LegOf(finish.outcome.status()), "decode");
  EXPECT_EQ(Take<RunStep>().sequences[0].attempt_id, 2u);
}

TEST_F(DecodeCoreTest, ErrorsOfOneSequenceEndThatOne) {
  std::vector<Ticket> tickets;
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) {
    tickets.push_back(Reserved(Request(attempt, 4, 4)));
    Do(StreamOpened{attempt, tickets.back().generation});
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
  Do(finished);
  std::set<uint64_t> failed;
  while (auto finish = TryTake<Finish>()) {
    EXPECT_TRUE(absl::IsInternal(finish->outcome.status()));
    failed.insert(finish->attempt_id);
  }
  EXPECT_EQ(failed, (std::set<uint64_t>{1, 2, 3}));
  EXPECT_EQ(Take<EmitToken>().attempt_id, 4u);
}

TEST_F(DecodeCoreTest, PagesOfARunningStepAreHeldUntilItEnds) {
  const Ticket ticket = Reserved(Request(1, 30, 2));
  Do(StreamOpened{1, ticket.generation});
  Commit(ticket);
  const auto step = Take<RunStep>();
  Do(AbortRequested{1, absl::CancelledError("")});
  Take<Finish>();
  actions_.erase(actions_.begin());  // The first token.
  Drain(ticket);
  EXPECT_EQ(core_.load().quarantined_pages, 8) << "drained, but the step still writes to them";
  Do(Request(2, 20, 4));
  EXPECT_TRUE(actions_.empty());
  FinishStep(step, 50);
  EXPECT_FALSE(TryTake<EmitToken>().has_value()) << "the output is nobody's";
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 2u);
}

TEST_F(DecodeCoreTest, AttemptMayComeAgainWhileItsOldStepRuns) {
  const Ticket old_ticket = Reserved(Request(1));
  Do(StreamOpened{1, old_ticket.generation});
  Commit(old_ticket);
  const auto step = Take<RunStep>();
  Do(AbortRequested{1, absl::CancelledError("")});
  actions_.clear();
  const Ticket ticket = Reserved(Request(1));
  Do(StreamOpened{1, ticket.generation});
  Commit(ticket, 7);
  EXPECT_EQ(Take<EmitToken>().token.token, 7);
  FinishStep(step, 50);
  EXPECT_FALSE(TryTake<EmitToken>().has_value()) << "a token of the old generation";
  EXPECT_EQ(Take<RunStep>().sequences[0].token, 7);
}

TEST_F(DecodeCoreTest, AbortInEveryState) {
  Do(AbortRequested{1, absl::CancelledError("early")});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(absl::IsCancelled(Refused(Request(1)))) << "the abort overtook it";

  const Ticket reserved = Reserved(Request(2, 30, 2));
  Do(Request(3, 20, 4));
  Do(AbortRequested{3, absl::CancelledError("waiting")});
  EXPECT_TRUE(absl::IsCancelled(Take<ReplyReserve>().ticket.status()));
  EXPECT_EQ(core_.load().waiting, 0);

  Do(AbortRequested{2, absl::UnavailableError("prefill failed")});
  EXPECT_TRUE(absl::IsUnavailable(Take<Finish>().outcome.status())) << "the reason is passed on";
  Commit(reserved);  // Was on its way.
  EXPECT_FALSE(TryTake<EmitToken>().has_value());
  Drain(reserved);

  const Ticket kept = Reserved(Request(4, 6, 1));
  Commit(kept);
  Do(AbortRequested{4, absl::CancelledError("")});
  EXPECT_TRUE(absl::IsCancelled(Take<Finish>().outcome.status()));
  Drain(kept);
  Do(AbortRequested{4, absl::CancelledError("again")});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, FailedHandOffEndsTheRequest) {
  const Ticket ticket = Reserved(Request(1));
  Do(StreamOpened{1, ticket.generation});
  Do(KvFailed{ticket.slot, ticket.generation,
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
  Do(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
  Drain(ticket);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(core_.load().free_pages, 10) << "it holds nothing but its outcome";
  Do(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(absl::IsDataLoss(Take<Finish>().outcome.status()));
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(DecodeCoreTest, KeptOutcomesAreBounded) {
  uint64_t attempt = 1;
  for (; !TryTake<Finish>().has_value(); ++attempt) {
    ASSERT_LT(attempt, 5000u);
    const Ticket ticket = Reserved(Request(attempt));
    Do(KvFailed{ticket.slot, ticket.generation, absl::DataLossError("checksum")});
    Drain(ticket);
  }
  Do(StreamOpened{1, 1});
  EXPECT_TRUE(absl::IsNotFound(Take<RefuseStream>().status)) << "the oldest went";
}

TEST_F(DecodeCoreTest, FirstTokenOutsideTheVocabularyEndsTheRequest) {
  const Ticket ticket = Reserved(Request(1));
  Do(StreamOpened{1, ticket.generation});
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
  Do(StreamOpened{2, running.generation});
  Commit(running);
  const auto step = Take<RunStep>();
  Do(with_deadline(Request(4, 20, 4), 300));
  EXPECT_EQ(core_.load().waiting, 1);
  EXPECT_EQ(core_.NextDeadlineUs(), 100);
  now_us_ = 100;
  Do(Tick{});
  EXPECT_EQ(Take<Finish>().attempt_id, 1u);
  Drain(reserved);
  EXPECT_EQ(core_.NextDeadlineUs(), 200);
  now_us_ = 300;
  Do(Tick{});
  const auto finish = Take<Finish>();
  EXPECT_EQ(finish.attempt_id, 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(finish.outcome.status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take<ReplyReserve>().ticket.status()));
  FinishStep(step, 1);
  EXPECT_EQ(core_.NextDeadlineUs(), 400);
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
            pending.emplace_back(KvCommitted{ticket.slot,
                                             ticket.generation,
                                             {static_cast<int32_t>(random.Below(12)), 0, {}},
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
