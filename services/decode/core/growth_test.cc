// Pages that texts take while they are decoded, and what gives way to them.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

DecodeLimits Growing(int pages = 10, int reserved = 1) {
  DecodeLimits limits = Limits();
  limits.page_count = pages;
  limits.reserved_decode_tokens = reserved;
  limits.max_queued_requests = 20;
  return limits;
}

class GrowthTest : public DecodeCoreTest {
 protected:
  explicit GrowthTest(DecodeLimits limits = Growing()) : DecodeCoreTest(std::move(limits)) {}

  static ReserveRequested Resumable(uint64_t attempt, int prompt = 3, int max_tokens = 8) {
    ReserveRequested request = Request(attempt, prompt, max_tokens);
    request.resumes = true;
    return request;
  }
  int PagesOf(const ReserveRequested& request) {
    Handle(request);
    const auto grant = Take<GrantKv>();
    return static_cast<int>(grant.grant.pages.size() + grant.continuation.size());
  }
  // With its KV and first token.
  Ticket Decoding(const ReserveRequested& request) {
    Ticket ticket = Reserved(request);
    Handle(StreamOpened{request.attempt_id, ticket.generation});
    Commit(ticket);
    return ticket;
  }
  void ExpectRetracted(const absl::Status& status) {
    EXPECT_TRUE(absl::IsAborted(status) && IsRetracted(status)) << status;
    EXPECT_EQ(LegOf(status), "decode");
    EXPECT_EQ(InstanceOf(status), kSelf.id);
  }
};

class PoolOfThree : public GrowthTest {
 protected:
  PoolOfThree() : GrowthTest(Growing(3)) {}
};

TEST_F(GrowthTest, TakesAPageWhenARowNeedsIt) {
  const Ticket ticket = Decoding(Resumable(1));
  RunStep step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].pages.size(), 1u);
  EXPECT_EQ(step.sequences[0].new_page, -1);
  EXPECT_EQ(core_.load().owned_pages, 1);
  std::vector<int> positions;  // That a page was taken for.
  while (true) {
    FinishStep(step, 2);
    if (TryTake<Finish>().has_value()) break;
    step = Take<RunStep>();
    const RunStep::Sequence& row = step.sequences[0];
    if (row.new_page < 0) continue;
    EXPECT_EQ(row.new_page, row.pages.back());
    positions.push_back(row.position);
  }
  EXPECT_EQ(positions, (std::vector<int>{4, 8})) << "3 + 8 tokens, of which the last is not fed";
  Drain(ticket);
  EXPECT_TRUE(core_.AtRest());
}

TEST_F(GrowthTest, ALateStreamTakesItsPageWhenItIsThere) {
  const Ticket ticket = Reserved(Resumable(1, 4));
  Commit(ticket);
  EXPECT_EQ(core_.load().owned_pages, 2);
  Handle(StreamOpened{1, ticket.generation});
  EXPECT_EQ(Take<RunStep>().sequences[0].position, 4);
}

TEST(ReserveTest, IsWhatItIsToldToBe) {
  class Core : public GrowthTest {
   public:
    Core() : GrowthTest(Growing(10, 6)) {}
    void TestBody() override {
      EXPECT_EQ(PagesOf(Resumable(1, 3, 20)), 3) << "3 + 6 tokens";
      EXPECT_EQ(PagesOf(Resumable(2, 3, 2)), 2) << "no more than it may draw";
      EXPECT_EQ(PagesOf(Request(3, 3, 14)), 5) << "all of it, since no router would go on with it";
    }
  };
  Core().TestBody();
}

TEST_F(PoolOfThree, WhatNeverFitsIsRefusedAtOnce) {
  const absl::Status status = Refused(Resumable(1, 3, 10));
  EXPECT_TRUE(absl::IsResourceExhausted(status) && !IsOverloaded(status)) << status;
}

TEST_F(PoolOfThree, TheYoungestGivesWayForItself) {
  Decoding(Resumable(1));
  const Ticket second = Decoding(Resumable(2));
  FinishStep(Take<RunStep>(), 2);
  const RunStep both = Take<RunStep>();
  ASSERT_EQ(both.sequences.size(), 2u);
  FinishStep(both, 3);
  const Finish end = Take<Finish>();
  EXPECT_EQ(end.attempt_id, 2u);
  ExpectRetracted(end.outcome.status());
  EXPECT_EQ(Take<RunStep>().sequences.size(), 1u) << "the oldest waits for nothing";
  EXPECT_EQ(core_.load().retractions_total, 1u);
  EXPECT_EQ(core_.load().quarantined_pages, 1);
  Drain(second);
  EXPECT_EQ(core_.load().free_pages, 1);
}

TEST_F(PoolOfThree, TheOldestGoesOnWhenThePagesHaveComeBack) {
  Decoding(Resumable(1));
  const Ticket second = Decoding(Resumable(2, 7, 3));
  FinishStep(Take<RunStep>(), 2);
  ExpectRetracted(Take<Finish>().outcome.status());
  EXPECT_FALSE(TryTake<RunStep>().has_value()) << "its pages are not free yet";
  Handle(Resumable(3));
  Handle(Tick{});
  EXPECT_FALSE(TryTake<RunStep>().has_value());
  EXPECT_EQ(core_.load().waiting, 1) << "nothing is admitted while a row waits";
  Drain(second);
  const RunStep step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].attempt_id, 1u);
  EXPECT_EQ(step.sequences[0].position, 4);
  EXPECT_GE(step.sequences[0].new_page, 0);
  EXPECT_EQ(core_.load().waiting, 0) << "there is a page for it, too";
  EXPECT_EQ(core_.load().retractions_total, 1u);
}

TEST_F(PoolOfThree, ATicketGivesWayBeforeItsKvIsThere) {
  Decoding(Resumable(1));
  const Ticket second = Reserved(Resumable(2, 7, 3));
  Handle(StreamOpened{2, second.generation});
  FinishStep(Take<RunStep>(), 2);
  const Finish end = Take<Finish>();
  EXPECT_EQ(end.attempt_id, 2u);
  ExpectRetracted(end.outcome.status());
  Drain(second);
  EXPECT_EQ(Take<RunStep>().sequences[0].attempt_id, 1u);
  Commit(second);  // It had been on its way.
}

TEST_F(PoolOfThree, AStreamThatIsLateHearsOfIt) {
  Decoding(Resumable(1));
  const Ticket second = Reserved(Resumable(2, 7, 3));
  Commit(second);
  FinishStep(Take<RunStep>(), 2);
  EXPECT_FALSE(TryTake<Finish>().has_value());
  Drain(second);
  while (TryTake<DeliverToken>().has_value()) continue;
  Handle(StreamOpened{2, second.generation});
  EXPECT_EQ(Take<DeliverToken>().index, 0) << "its first token was kept";
  ExpectRetracted(Take<Finish>().outcome.status());
}

TEST_F(GrowthTest, OneShortageDoesNotRetractEverybody) {
  Decoding(Resumable(1, 3, 20));
  Decoding(Resumable(2, 15, 4));  // Four pages each.
  const Ticket third = Decoding(Resumable(3, 15, 4));
  Reserved(Resumable(4, 3, 4));  // The tenth page.
  FinishStep(Take<RunStep>(), 2);
  // One page is wanted for the first: the fourth gives way. The second and the third want one, too.
  std::set<uint64_t> gone;
  while (const auto end = TryTake<Finish>()) gone.insert(end->attempt_id);
  const RunStep step = Take<RunStep>();
  EXPECT_EQ(step.sequences.size(), 2u);
  FinishStep(step, 2);
  while (const auto end = TryTake<Finish>()) gone.insert(end->attempt_id);
  EXPECT_EQ(core_.load().retractions_total, 2u);
  for (int i = 0; i < 3; ++i) Handle(Tick{});
  EXPECT_EQ(core_.load().retractions_total, 2u) << "pages are on their way back";
  EXPECT_FALSE(gone.contains(1));
  EXPECT_TRUE(gone.contains(3)) << third.slot;
}

TEST_F(PoolOfThree, WhoHoldsAllPagesIsNeverRetracted) {
  const Ticket whole = Decoding(Request(1, 3, 3));  // Two pages.
  Decoding(Resumable(2));
  FinishStep(Take<RunStep>(), 2);
  FinishStep(Take<RunStep>(), 2);
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  EXPECT_FALSE(TryTake<RunStep>().has_value()) << "the second waits for a page";
  Drain(whole);
  EXPECT_EQ(Take<RunStep>().sequences[0].attempt_id, 2u);
  EXPECT_EQ(core_.load().retractions_total, 0u);
}

class CachingPool : public GrowthTest {
 protected:
  static DecodeLimits Caching() {
    DecodeLimits limits = Growing(4);
    limits.caches = true;
    return limits;
  }
  CachingPool() : GrowthTest(Caching()) {}
  static ReserveRequested Cached(uint64_t attempt, int prompt, int max_tokens) {
    ReserveRequested request = Resumable(attempt, prompt, max_tokens);
    request.tokens = std::make_shared<const std::vector<int32_t>>(prompt, attempt % 2 == 0 ? 7 : 8);
    return request;
  }
};

TEST_F(CachingPool, TheCacheGivesUpPagesFirst) {
  const Ticket first = Decoding(Cached(1, 7, 1));
  Drain(first);
  ASSERT_EQ(core_.load().cached_pages, 1);
  Take<Finish>();
  Decoding(Cached(2, 3, 13));
  RunStep step = Take<RunStep>();
  while (true) {
    FinishStep(step, 2);
    const auto next = TryTake<RunStep>();
    if (!next.has_value()) break;
    step = *next;
  }
  EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
  EXPECT_EQ(core_.load().evicted_pages_total, 1u);
  EXPECT_EQ(core_.load().retractions_total, 0u);
}

TEST_F(CachingPool, WhatARetractedPromptHadInTheCacheStays) {
  Decoding(Cached(1, 3, 9));
  const Ticket second = Decoding(Cached(2, 7, 5));
  FinishStep(Take<RunStep>(), 2);  // Four pages are held.
  FinishStep(Take<RunStep>(), 2);  // The second wants a third one.
  const Finish end = Take<Finish>();
  EXPECT_EQ(end.attempt_id, 2u);
  ExpectRetracted(end.outcome.status());
  Drain(second);
  EXPECT_EQ(core_.load().cached_pages, 1);
  EXPECT_EQ(core_.load().free_pages, 2) << "the cached one among them";
}

class GrowingRanksTest : public GrowthTest {
 protected:
  static DecodeLimits TwoRanks() {
    DecodeLimits limits = Growing(4);
    limits.ranks = limits.kv_heads = 2;
    return limits;
  }
  GrowingRanksTest() : GrowthTest(TwoRanks()) {}

  void JoinTwo(bool knows_growth = true) {
    Handle(RanksJoined{{{"decode-0-1", 201}}, 4, 0, knows_growth});
  }
  static ReserveRequested Resumable(uint64_t attempt, int prompt, int max_tokens) {
    ReserveRequested request = GrowthTest::Resumable(attempt, prompt, max_tokens);
    request.writers = {{{"prefill-0-0", 1}, {0, 6}, {0, 2}}, {{"prefill-0-1", 2}, {0, 6}, {1, 2}}};
    return request;
  }
  // What the follower is told of the reservation that was made last.
  GrantKv FollowersGrant() {
    EXPECT_EQ(Take<GrantKv>().rank, 0);
    return Take<GrantKv>();
  }
  Ticket Decoding(const ReserveRequested& request) {
    Handle(request);
    const KvGrant grant = FollowersGrant().grant;
    Handle(FollowerGranted{1, grant.slot, grant.generation});
    Ticket ticket = Take<ReplyReserve>().ticket.value();
    Handle(StreamOpened{request.attempt_id, ticket.generation});
    Commit(ticket, 7);
    Handle(FollowerHeard{1, KvCommitted{ticket.slot, ticket.generation, {}, 0}});
    return ticket;
  }
};

TEST_F(GrowingRanksTest, AStepTellsOfAPage) {
  JoinTwo();
  Decoding(Resumable(1, 3, 6));
  FinishStep(Take<RunStep>(), 2);
  const RunStep step = Take<RunStep>();
  EXPECT_EQ(step.sequences[0].position, 4);
  EXPECT_EQ(step.sequences[0].new_page, step.sequences[0].pages.back());
}

TEST_F(GrowingRanksTest, WhoWaitsForAFollowerGivesWay) {
  JoinTwo();
  Decoding(Resumable(1, 3, 9));
  Handle(Resumable(2, 11, 2));  // Three pages.
  const KvGrant grant = FollowersGrant().grant;
  FinishStep(Take<RunStep>(), 2);
  const ReplyReserve reply = Take<ReplyReserve>();
  EXPECT_EQ(reply.attempt_id, 2u);
  EXPECT_TRUE(IsRetracted(reply.ticket.status())) << reply.ticket.status();
  Handle(FollowerGranted{1, grant.slot, grant.generation});
  EXPECT_FALSE(TryTake<ReplyReserve>().has_value());
  Handle(KvDrained{grant.slot, grant.generation});
  EXPECT_FALSE(TryTake<RunStep>().has_value()) << "its pages are the follower's yet";
  Handle(FollowerHeard{1, KvDrained{grant.slot, grant.generation}});
  EXPECT_GE(Take<RunStep>().sequences[0].new_page, 0);
}

TEST_F(GrowingRanksTest, FollowersThatDoNotKnowItGetAllPagesAtOnce) {
  JoinTwo(/*knows_growth=*/false);
  Handle(Resumable(1, 3, 9));
  EXPECT_EQ(FollowersGrant().continuation.size(), 2u);
}

// Whatever comes, texts end, the oldest first of all.
TEST(GrowthOfManyTest, EveryTextEnds) {
  class Soak : public GrowthTest {
   public:
    explicit Soak(uint64_t seed) : GrowthTest(Growing(8, 1 + static_cast<int>(seed % 5))) {}
    void TestBody() override {}
    uint64_t Run(uint64_t seed) {
      Random random(seed);
      std::map<uint64_t, int> left;   // Attempt: tokens to draw.
      std::map<uint64_t, int> reads;  // Attempt: tokens read.
      std::map<uint64_t, Ticket> tickets;
      uint64_t attempts = 0;
      const auto ask = [&](int prompt, int tokens) {
        left[++attempts] = tokens;
        reads[attempts] = prompt;
        Handle(Resumable(attempts, prompt, tokens));
      };
      int asked = 0;
      for (int round = 0; round < 4000; ++round) {
        if (asked < 40 && left.size() < 6) {
          const int prompt = static_cast<int>(random.Between(1, 16));
          ask(prompt, static_cast<int>(random.Between(1, 31 - prompt)));
          ++asked;
        }
        while (TryTake<GrantKv>().has_value()) continue;
        if (auto reply = TryTake<ReplyReserve>()) {
          tickets[reply->attempt_id] = reply->ticket.value();
          Handle(StreamOpened{reply->attempt_id, reply->ticket->generation});
          if (random.Chance(0.7)) Commit(tickets[reply->attempt_id]);
        }
        if (auto revoke = TryTake<RevokeKv>(); revoke.has_value()) {
          Handle(KvDrained{revoke->slot, revoke->generation});
        }
        while (auto token = TryTake<DeliverToken>()) {
          --left[token->attempt_id];
          ++reads[token->attempt_id];
        }
        while (auto end = TryTake<Finish>()) {
          const uint64_t attempt = end->attempt_id;
          const int still = left[attempt];
          const int read = reads[attempt];
          const bool oldest = tickets.begin()->first == attempt;
          tickets.erase(attempt);
          left.erase(attempt);
          if (end->outcome.ok()) {
            EXPECT_EQ(still, 0);
            continue;
          }
          ExpectRetracted(end->outcome.status());
          EXPECT_FALSE(oldest);
          ask(read, still);
        }
        if (auto step = TryTake<RunStep>()) {
          FinishStep(*step, 2);
        } else if (!tickets.empty() && random.Chance(0.5)) {
          Commit(tickets.begin()->second);
        }
      }
      EXPECT_TRUE(left.empty()) << left.size() << " texts have no end, seed " << seed;
      EXPECT_TRUE(core_.AtRest());
      return core_.load().retractions_total;
    }
  };
  uint64_t retractions = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) retractions += Soak(seed).Run(seed);
  EXPECT_GT(retractions, 50u);
}

}  // namespace
}  // namespace baton::decode
