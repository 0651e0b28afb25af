// The prefix cache of a decode service.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "services/decode/core/decode_core_fixture.h"

namespace baton::decode {
namespace {

using Ids = std::vector<int32_t>;

DecodeLimits CachingLimits() {
  DecodeLimits limits = Limits();
  limits.caches = true;
  return limits;
}

class DecodeCacheTest : public DecodeCoreTest {
 protected:
  explicit DecodeCacheTest(DecodeLimits limits = CachingLimits())
      : DecodeCoreTest(std::move(limits)) {}

  static Ids Prompt(int tokens, int32_t first = 1) {
    Ids ids;
    for (int i = 0; i < tokens; ++i) ids.push_back((first + i) % 90);
    return ids;
  }
  static ReserveRequested Cached(uint64_t attempt, const Ids& prompt, int max_tokens = 5,
                                 const std::string& salt = "") {
    ReserveRequested request = Request(attempt, static_cast<int>(prompt.size()), max_tokens);
    request.tokens = std::make_shared<const Ids>(prompt);
    request.cache_salt = salt;
    return request;
  }
  // From the ticket to the last token. Each token is the number of those before it.
  Ticket Run(const ReserveRequested& request) {
    Ticket ticket = Reserved(request);
    Handle(StreamOpened{request.attempt_id, ticket.generation});
    Commit(ticket, 0);
    for (int32_t token = 1; token < request.stop.max_tokens; ++token) {
      FinishStep(Take<RunStep>(), token);
    }
    EXPECT_EQ(*Take<Finish>().outcome, FinishReason::kLength);
    Drain(ticket);
    return ticket;
  }
};

TEST_F(DecodeCacheTest, WhatAPromptSharesIsNotSentAgain) {
  EXPECT_EQ(Run(Cached(1, Prompt(10))).first_page, 0);
  const std::vector<int> pages = grant_.pages;
  EXPECT_TRUE(core_.AtRest());
  EXPECT_EQ(core_.load().owned_pages, 0);
  EXPECT_EQ(core_.load().free_pages, 10);

  Ids longer = Prompt(8);
  longer.insert(longer.end(), {70, 71, 72, 73, 74});
  EXPECT_EQ(Run(Cached(2, longer)).first_page, 2);
  EXPECT_EQ(grant_.first_page, 2);
  EXPECT_EQ(grant_.pages.size(), 4u);
  EXPECT_EQ(grant_.pages[0], pages[0]);
  EXPECT_EQ(grant_.pages[1], pages[1]);
  EXPECT_EQ(core_.load().reused_pages_total, 2u);
}

TEST_F(DecodeCacheTest, TheLastPageIsAlwaysSent) {
  Run(Cached(1, Prompt(8)));
  EXPECT_EQ(Run(Cached(2, Prompt(8))).first_page, 1);
  EXPECT_EQ(Run(Cached(3, Prompt(4))).first_page, 0);
}

// Prompt and text are the next turn's prompt. The last token's KV is missing.
TEST_F(DecodeCacheTest, WhatWasDecodedIsKept) {
  Run(Cached(1, Prompt(6), 6));
  Ids turn = Prompt(6);
  turn.insert(turn.end(), {0, 1, 2, 3, 4, 5, 60});
  EXPECT_EQ(Run(Cached(2, turn)).first_page, 2) << "11 tokens are two pages and a half";
}

TEST_F(DecodeCacheTest, SaltsAndRanksShareNothing) {
  Run(Cached(1, Prompt(10), 5, "a"));
  EXPECT_EQ(Run(Cached(2, Prompt(10), 5, "b")).first_page, 0);
  EXPECT_EQ(Run(Cached(3, Prompt(10), 5, "a")).first_page, 2);
  ReserveRequested other = Cached(4, Prompt(10), 5, "a");
  for (KvWriter& writer : other.writers) writer.tensor_rank = {0, 2};
  EXPECT_EQ(Run(other).first_page, 0);
}

TEST_F(DecodeCacheTest, WithoutIdsNothingIsKept) {
  ReserveRequested request = Cached(1, Prompt(10));
  request.tokens = nullptr;
  Run(request);
  EXPECT_EQ(core_.load().cached_pages, 0);
}

TEST_F(DecodeCacheTest, WhatIsNotCompleteIsNotKept) {
  const Ticket failed = Reserved(Cached(1, Prompt(10)));
  Handle(KvFailed{failed.slot, failed.generation, absl::UnavailableError("gone")});
  Drain(failed);
  const Ticket aborted = Reserved(Cached(2, Prompt(10)));
  EXPECT_EQ(aborted.first_page, 0);
  Handle(AbortRequested{2, absl::CancelledError("")});
  Drain(aborted);
  EXPECT_EQ(core_.load().cached_pages, 0);
}

TEST_F(DecodeCacheTest, PagesInUseAreNotGivenUp) {
  Run(Cached(1, Prompt(10)));
  const Ticket held = Reserved(Cached(2, Prompt(10)));  // Two shared pages, two of its own.
  EXPECT_EQ(held.first_page, 2);
  Handle(FlushCache{});
  EXPECT_EQ(core_.load().cached_pages, 2);
  EXPECT_EQ(core_.load().free_pages, 6);
  // Four of the ten pages are in use.
  Handle(Cached(3, Prompt(20, 50)));
  EXPECT_FALSE(TryTake<GrantKv>().has_value());
  Handle(AbortRequested{2, absl::CancelledError("")});
  EXPECT_FALSE(TryTake<GrantKv>().has_value()) << "its table has not drained";
  Drain(held);
  EXPECT_EQ(Take<GrantKv>().grant.pages.size(), 5u);
  EXPECT_EQ(core_.load().evicted_pages_total, 0u) << "what is free goes first";
}

TEST_F(DecodeCacheTest, WhatWasUnusedTheLongestIsGivenUpFirst) {
  Run(Cached(1, Prompt(9, 10)));
  Run(Cached(2, Prompt(9, 40)));
  EXPECT_EQ(core_.load().cached_pages, 6) << "prompt and text are three pages each";
  Run(Cached(3, Prompt(16, 70), 8));
  EXPECT_EQ(core_.load().evicted_pages_total, 2u);
  EXPECT_EQ(Run(Cached(4, Prompt(9, 40))).first_page, 2);
}

// Two of one prompt at the same time: the tree takes the pages of one, the other keeps its own.
TEST_F(DecodeCacheTest, TwoOfOnePromptDoNotShareWhatNeitherHad) {
  const Ticket a = Reserved(Cached(1, Prompt(8), 2));
  const Ticket b = Reserved(Cached(2, Prompt(8), 2));
  EXPECT_EQ(b.first_page, 0);
  Commit(a);
  Commit(b);
  EXPECT_EQ(core_.load().cached_pages, 2);
  for (const Ticket& ticket : {a, b}) {
    Handle(AbortRequested{ticket == a ? 1u : 2u, absl::CancelledError("")});
    Drain(ticket);
  }
  EXPECT_TRUE(core_.AtRest());
}

// Random requests of few families of prompts over a small pool, with pages that know their tokens.
class PagesWithTokens : public DecodeCacheTest {
 protected:
  struct Request {
    Ids context;  // The prompt and what was drawn.
    size_t prompt = 0;
    Ticket ticket;
    std::vector<int> pages;
    int unwritten = 0;  // Prompt pages from here on have not arrived.
  };

  static int32_t NextToken(const Ids& context) {
    uint64_t sum = 7;
    for (const int32_t id : context) sum = Mix64(sum + static_cast<uint64_t>(id));
    return static_cast<int32_t>(sum % 20);  // kEos is one of them.
  }
  void Arrive() {
    const uint64_t attempt = ++last_attempt_;
    Request& request = requests_[attempt];
    const auto family = static_cast<int32_t>(random_.Between(0, 2));
    // Each turn of a conversation begins with the whole turn before it.
    Ids& conversation = conversations_[family];
    if (conversation.size() > 34 || random_.Chance(0.2)) conversation = Prompt(5, 30 * family);
    request.context = conversation;
    const auto more = random_.Between(1, 9);
    for (int i = 0; i < more; ++i) {
      request.context.push_back(static_cast<int32_t>(random_.Between(0, 1)));
    }
    request.prompt = request.context.size();
    Handle(Cached(attempt, request.context, static_cast<int>(random_.Between(1, 9))));
    Perform();
  }
  void Perform() {
    std::vector<Action> actions = std::exchange(actions_, {});
    for (Action& action : actions) std::visit([this](auto& a) { Do(a); }, action);
  }
  void Do(const GrantKv& action) {
    granted_ = action.grant.pages;
    granted_.insert(granted_.end(), action.continuation.begin(), action.continuation.end());
  }
  void Do(const ReplyReserve& action) {
    if (!action.ticket.ok()) {
      requests_.erase(action.attempt_id);
      return;
    }
    Request& request = requests_.at(action.attempt_id);
    request.ticket = *action.ticket;
    request.pages = granted_;
    request.unwritten = action.ticket->first_page;
    shared_pages_ += action.ticket->first_page;
    Later([this, id = action.attempt_id] { Open(id); });
    Later([this, id = action.attempt_id] { Write(id); });
  }
  void Open(uint64_t id) {
    if (requests_.contains(id)) Handle(StreamOpened{id, requests_.at(id).ticket.generation});
  }
  // One page of the prompt arrives, or its commit.
  void Write(uint64_t id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    Request& request = found->second;
    if (random_.Chance(0.02)) {
      Handle(KvFailed{request.ticket.slot, request.ticket.generation, absl::DataLossError("x")});
      return;
    }
    if (request.unwritten == request.ticket.prompt_pages) {
      Commit(request.ticket, Draw(request));
      return;
    }
    const size_t begin = static_cast<size_t>(request.unwritten++) * kPageSize;
    const size_t end = std::min(request.prompt, begin + kPageSize);
    for (size_t i = begin; i < end; ++i) Put(request, i);
    Later([this, id] { Write(id); });
  }
  static int32_t Draw(Request& request) {
    request.context.push_back(NextToken(request.context));
    return request.context.back();
  }
  int32_t& At(const Request& request, size_t position) {
    const size_t page = position / kPageSize;
    return kv_[request.pages.at(page)][position % kPageSize];
  }
  void Put(const Request& request, size_t position) {
    At(request, position) = request.context[position];
  }
  void Do(const RunStep& action) {
    Later([this, action] {
      StepFinished finished{action.step, absl::OkStatus(), {}};
      for (const RunStep::Sequence& row : action.sequences) {
        const auto found = requests_.find(row.attempt_id);
        if (found == requests_.end()) continue;  // Ended meanwhile; the core drops the output.
        Request& request = found->second;
        Put(request, static_cast<size_t>(row.position));
        for (size_t i = 0; i <= static_cast<size_t>(row.position); ++i) {
          ASSERT_EQ(At(request, i), request.context[i]) << "position " << i;
        }
        finished.outputs.push_back({row.attempt_id, SampledToken{Draw(request), -1, {}}});
      }
      Handle(finished);
    });
  }
  void Do(const DeliverToken&) {}
  void Do(const RefuseStream&) {}
  void Do(const PartRanks&) {}
  void Do(const RevokeKv& action) {
    Later([this, action] { Handle(KvDrained{action.slot, action.generation}); });
  }
  void Do(const Finish& action) {
    Request& request = requests_.at(action.attempt_id);
    if (action.outcome.ok()) conversations_[request.context[0] / 30] = request.context;
    requests_.erase(action.attempt_id);
  }
  void Later(std::function<void()> task) {
    agenda_.emplace(now_us_ + random_.Between(1, 50), std::move(task));
  }
  void RunAll(int requests) {
    for (int i = 0; i < requests; ++i) {
      agenda_.emplace(random_.Between(1, int64_t{requests} * 60), [this] { Arrive(); });
      if (random_.Chance(0.2)) {
        agenda_.emplace(random_.Between(1, int64_t{requests} * 60), [this] { Interrupt(); });
      }
    }
    while (!agenda_.empty() && !HasFatalFailure()) {
      now_us_ = agenda_.begin()->first;
      const auto task = std::move(agenda_.begin()->second);
      agenda_.erase(agenda_.begin());
      task();
      Perform();
    }
  }
  void Interrupt() {
    if (random_.Chance(0.1)) return Handle(FlushCache{});
    if (requests_.empty()) return;
    auto victim = requests_.begin();
    std::advance(victim, random_.Between(0, static_cast<int64_t>(requests_.size()) - 1));
    Handle(AbortRequested{victim->first, absl::CancelledError("")});
  }

  Random random_{1};
  std::map<uint64_t, Request> requests_;
  std::map<int32_t, Ids> conversations_;
  std::map<int, std::map<size_t, int32_t>> kv_;  // Page -> token of each place in it.
  std::multimap<int64_t, std::function<void()>> agenda_;
  std::vector<int> granted_;
  uint64_t last_attempt_ = 0;
  int64_t shared_pages_ = 0;
};

TEST_F(PagesWithTokens, AStepReadsItsOwnContext) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    random_ = Random(seed);
    RunAll(300);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    ASSERT_TRUE(core_.AtRest()) << "seed " << seed;
  }
  EXPECT_GT(shared_pages_, 1000);
  EXPECT_GT(core_.load().evicted_pages_total, 100u);
}

}  // namespace
}  // namespace baton::decode
