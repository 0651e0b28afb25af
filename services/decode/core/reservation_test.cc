// From a request to its ticket and its stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

TEST_F(DecodeCoreTest, ARequestFromReservationToRest) {
  const Ticket ticket = Reserved(Request(1, /*prompt=*/6, /*max_tokens=*/3));
  EXPECT_EQ(ticket.decode, kSelf);
  EXPECT_EQ(ticket.prompt_tokens, 6);
  EXPECT_EQ(ticket.prompt_pages, 2);
  EXPECT_EQ(grant_.pages.size(), 2u) << "writers get the prompt's pages alone";
  EXPECT_EQ(core_.load().owned_pages, 3) << "6 + 3 tokens";
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket, 17);
  EXPECT_EQ(Take<DeliverToken>().token.token, 17);

  auto step = Take<RunStep>();
  ASSERT_EQ(step.sequences.size(), 1u);
  EXPECT_EQ(step.sequences[0].token, 17);
  EXPECT_EQ(step.sequences[0].position, 6);
  EXPECT_EQ(step.sequences[0].generated, 1);
  EXPECT_EQ(step.sequences[0].pages.size(), 2u);
  FinishStep(step, 18);
  const auto emitted = Take<DeliverToken>();
  EXPECT_EQ(emitted.index, 1);
  EXPECT_EQ(emitted.token.token, 18);

  step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].position, 7);
  FinishStep(step, 19);
  EXPECT_EQ(Take<DeliverToken>().token.token, 19);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  EXPECT_FALSE(core_.AtRest());
  EXPECT_EQ(core_.load().quarantined_pages, 3);
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
  EXPECT_TRUE(actions_.empty());
}

TEST_F(DecodeCoreTest, GrantComesBeforeTheTicket) {
  Handle(Request(1));
  ASSERT_EQ(actions_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<GrantKv>(actions_[0]));
  EXPECT_TRUE(std::holds_alternative<ReplyReserve>(actions_[1]));
}

TEST_F(DecodeCoreTest, RefusesMalformedReservations) {
  EXPECT_EQ(FieldOf(Refused(Request(0))), "attempt_id");
  EXPECT_EQ(FieldOf(Refused(Request(1, 0))), "prompt_tokens");
  EXPECT_EQ(FieldOf(Refused(Request(1, 64))), "prompt_tokens");
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

// Two KV heads. A row: the writers as {rank, ranks} by stage, and the number of decode ranks.
TEST_F(DecodeCoreTest, WantsEveryHeadOfEveryLayerOnce) {
  struct Row {
    std::vector<TensorRank> first;   // Ranks that write layers [0, 2).
    std::vector<TensorRank> second;  // And [2, 6).
    bool right;
    int decode_ranks = 1;
  };
  const std::vector<Row> rows{
      {{{}}, {{}}, true},
      {{{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}, true},
      {{{1, 2}, {0, 2}}, {{}}, true},
      {{{0, 4}, {2, 4}}, {{2, 4}, {0, 4}}, true},   // Copies of the same heads: 0 and 1, 2 and 3.
      {{{0, 4}, {2, 4}}, {{1, 4}, {2, 4}}, false},  // Rank 1 would write nothing.
      {{{0, 2}}, {{}}, false},
      {{{0, 2}, {0, 2}}, {{}}, false},
      {{{0, 2}, {1, 2}, {1, 2}}, {{}}, false},
      {{{0, 4}, {1, 4}}, {{}}, false},
      {{{}, {}}, {{}}, false},
      {{{1, 2}}, {{}}, false},
      {{{0, 2}, {2, 4}}, {{}}, false},  // One stage, two numbers of ranks.
      {{{0, 2}, {1, 4}}, {{}}, false},
      {{{0, 3}, {1, 3}}, {{}}, false},  // Three can't share two.
      {{{}}, {{0, 2}, {1, 2}}, true, 2},
      {{{0, 4}, {2, 4}}, {{}}, true, 2},
      {{{0, 4}, {1, 4}, {2, 4}, {3, 4}}, {{}}, false, 2},
      {{{0, 4}, {1, 4}, {2, 4}, {3, 4}}, {{0, 2}, {1, 2}}, true, 4},  // To each copy from its own.
      {{{0, 4}, {2, 4}}, {{}}, false, 4},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    DecodeLimits limits = Limits();
    limits.ranks = rows[i].decode_ranks;
    limits.kv_heads = 2;
    limits.layout.kv_heads = KvHeadsOf(2, {0, limits.ranks}).size();
    DecodeCore core(limits);
    ReserveRequested request = Request(1);
    request.writers.clear();
    for (const TensorRank rank : rows[i].first) request.writers.push_back({{"p", 1}, {0, 2}, rank});
    for (const TensorRank rank : rows[i].second) {
      request.writers.push_back({{"q", 1}, {2, 6}, rank});
    }
    std::vector<Action> actions;
    if (limits.ranks > 1) {
      const size_t followers = static_cast<size_t>(limits.ranks) - 1;
      core.Handle(RanksJoined{std::vector<InstanceRef>(followers), limits.page_count}, 0, actions);
    }
    core.Handle(request, 0, actions);
    const auto* refused = std::get_if<ReplyReserve>(&actions.at(0));
    const absl::Status status = refused == nullptr ? absl::OkStatus() : refused->ticket.status();
    EXPECT_EQ(status.ok(), rows[i].right) << i << ": " << status;
    if (!rows[i].right) {
      EXPECT_EQ(FieldOf(status), "writers") << i;
    }
  }
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
  Handle(Request(2, 20, 4));
  Handle(Request(3, 1, 1));
  EXPECT_TRUE(actions_.empty()) << "the small one doesn't overtake";
  EXPECT_EQ(core_.load().waiting, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(Request(4)))) << "the queue is full";
  Handle(AbortRequested{1, absl::CancelledError("gone")});
  EXPECT_TRUE(absl::IsCancelled(Take<Finish>().outcome.status()));
  EXPECT_FALSE(TryTake<GrantKv>().has_value()) << "pages are in quarantine";
  Drain(first);
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 2u);
  EXPECT_EQ(Take<ReplyReserve>().attempt_id, 3u);
}

TEST_F(DecodeCoreTest, SlotsBoundTheReservations) {
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Reserved(Request(attempt, 1, 1));
  Handle(Request(5, 1, 1));
  EXPECT_EQ(core_.load().waiting, 1);
}

TEST_F(DecodeCoreTest, DuplicateAttemptIsRefusedAndHarmless) {
  const Ticket ticket = Reserved(Request(1));
  EXPECT_TRUE(absl::IsAlreadyExists(Refused(Request(1))));
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  EXPECT_EQ(Take<DeliverToken>().attempt_id, 1u);
}

TEST_F(DecodeCoreTest, StreamsAreRefusedWithoutHarm) {
  const auto refusal = [this](uint64_t attempt, uint64_t generation) {
    Handle(StreamOpened{attempt, generation});
    return Take<RefuseStream>().status.code();
  };
  EXPECT_EQ(refusal(1, 1), absl::StatusCode::kNotFound);
  const Ticket ticket = Reserved(Request(1));
  EXPECT_EQ(refusal(1, ticket.generation + 1), absl::StatusCode::kFailedPrecondition);
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(refusal(1, ticket.generation), absl::StatusCode::kAlreadyExists);
  Commit(ticket);
  Take<DeliverToken>();
  Take<RunStep>();
}

// No grant has generation 0, but a request that waits for pages has none yet.
TEST_F(DecodeCoreTest, AStreamComesBehindItsTicketOnly) {
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Reserved(Request(attempt, 1, 1));
  Handle(Request(5, 1, 1));
  ASSERT_EQ(core_.load().waiting, 1);
  Handle(StreamOpened{5, 0});
  EXPECT_TRUE(absl::IsFailedPrecondition(Take<RefuseStream>().status));
  EXPECT_EQ(core_.load().waiting, 1) << "it waits as if nobody had come";
}

TEST_F(DecodeCoreTest, NothingIsComputedWithoutAStream) {
  const Ticket ticket = Reserved(Request(1));
  Commit(ticket, 5);
  EXPECT_TRUE(actions_.empty());
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_EQ(Take<DeliverToken>().token.token, 5);
  Take<RunStep>();
}

TEST_F(DecodeCoreTest, FinishIsKeptUntilTheStreamOpens) {
  const Ticket ticket = Reserved(Request(1, 6, 1));
  Commit(ticket, 5);
  Drain(ticket);
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(core_.load().owned_pages, 0) << "an ended request holds no pages";
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_EQ(Take<DeliverToken>().index, 0);
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
  Handle(Tick{});
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
  Handle(Tick{});
  const absl::Status status = Take<Finish>().outcome.status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("stream was not opened"));
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_TRUE(absl::IsNotFound(Take<RefuseStream>().status)) << "it comes too late";
}

TEST_F(DecodeCoreTest, AnOpenStreamEndsTheLease) {
  const Ticket ticket = Reserved(Request(1));
  now_us_ = Limits().stream_lease_us - 1;
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_EQ(core_.NextDeadlineUs(), kNeverUs);
  now_us_ = Limits().stream_lease_us * 10;
  Commit(ticket);
  EXPECT_EQ(Take<DeliverToken>().index, 0);
}

TEST_F(DecodeCoreTest, AGrantSaysWhatItsTicketSays) {
  now_us_ = 1000;
  ReserveRequested request = Request(1, 6, 3);
  request.deadline_us = 5'000'000;
  std::reverse(request.writers.begin(), request.writers.end());  // Any order of stages will do.
  const Ticket ticket = Reserved(request);
  EXPECT_EQ(grant_.slot, ticket.slot);
  EXPECT_EQ(grant_.generation, ticket.generation);
  EXPECT_EQ(grant_.writers, request.writers);
  EXPECT_EQ(grant_.deadline_us, 5'000'000);
  EXPECT_EQ(core_.NextDeadlineUs(), 1000 + Limits().stream_lease_us) << "from the ticket on";
  EXPECT_EQ(core_.load().reserved, 1);
  const Ticket next = Reserved(Request(2));
  EXPECT_NE(next.slot, ticket.slot);
  EXPECT_GT(next.generation, ticket.generation);
}

// A prompt that fills its pages exactly: the writers' pages end with it, and the first new token
// needs another one.
TEST_F(DecodeCoreTest, APromptOfExactlyItsPagesGetsNoMore) {
  const Ticket ticket = Reserved(Request(1, 2 * kPageSize, kPageSize));
  EXPECT_EQ(ticket.prompt_pages, 2);
  EXPECT_EQ(grant_.pages.size(), 2u);
  EXPECT_EQ(core_.load().owned_pages, 3);
  Handle(StreamOpened{1, ticket.generation});
  Commit(ticket);
  auto step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].position, 2 * kPageSize);
  EXPECT_EQ(step.sequences[0].pages.size(), 3u);
  EXPECT_TRUE(std::equal(grant_.pages.begin(), grant_.pages.end(), step.sequences[0].pages.begin()))
      << "the prompt's pages come first, in their order";
  FinishStep(step, 1);
  step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].position, 2 * kPageSize + 1);
  EXPECT_EQ(step.sequences[0].generated, 2);
}

DecodeLimits Changed(int DecodeLimits::*limit, int value) {
  DecodeLimits limits = Limits();
  limits.*limit = value;
  return limits;
}

class SmallContextTest : public DecodeCoreTest {
 protected:
  SmallContextTest() : DecodeCoreTest(Changed(&DecodeLimits::max_context_tokens, 12)) {}
};

TEST_F(SmallContextTest, EndsTheAnswer) {
  EXPECT_EQ(FieldOf(Refused(Request(1, 12))), "prompt_tokens");
  const Ticket ticket = Reserved(Request(2, 10, 1000));
  Handle(StreamOpened{2, ticket.generation});
  Commit(ticket);
  EXPECT_FALSE(TryTake<Finish>().has_value());
  FinishStep(Take<RunStep>(), 1);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength) << "10 + 2 tokens";
  Drain(ticket);
  const Ticket one = Reserved(Request(3, 11, 1000));
  Handle(StreamOpened{3, one.generation});
  actions_.clear();
  Commit(one);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
}

TEST_F(DecodeCoreTest, RefusesWritersThatAreNobodyOrHaveNoLayers) {
  ReserveRequested request = Request(1);
  request.writers[1].instance.id.clear();
  EXPECT_EQ(FieldOf(Refused(request)), "writers");
  const std::vector<std::vector<LayerRange>> empty_ranges{{{0, 0}, {0, 6}},
                                                          {{0, 2}, {2, 2}, {2, 6}}};
  for (const auto& ranges : empty_ranges) {
    request.writers.clear();
    for (const LayerRange& range : ranges) request.writers.push_back({{"p", 1}, range});
    EXPECT_EQ(FieldOf(Refused(request)), "writers");
  }
}

class NoQueueTest : public DecodeCoreTest {
 protected:
  NoQueueTest() : DecodeCoreTest(Changed(&DecodeLimits::max_queued_requests, 0)) {}
};

TEST_F(NoQueueTest, WhatFitsIsTakenAndTheRestRefused) {
  Reserved(Request(1, 30, 2));
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(Request(2, 30, 2))));
  Reserved(Request(3, 4, 4));
}

TEST_F(DecodeCoreTest, WhoWaitsHasItsWholeStreamLeaseFromTheTicketOn) {
  const Ticket first = Reserved(Request(1, 30, 2));
  Handle(StreamOpened{1, first.generation});
  Handle(Request(2, 20, 4));
  EXPECT_EQ(core_.NextDeadlineUs(), kNeverUs) << "no ticket, no lease";
  now_us_ = 10 * Limits().stream_lease_us;
  Handle(AbortRequested{1, absl::OkStatus()});
  EXPECT_TRUE(absl::IsCancelled(Take<Finish>().outcome.status()));
  Drain(first);
  EXPECT_EQ(core_.NextDeadlineUs(), 11 * Limits().stream_lease_us);
}

}  // namespace
}  // namespace baton::decode
