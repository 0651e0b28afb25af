// Which pair takes a request, and when one has room for it: what it gives to workers holds KV pages
// there, so a request that can't begin yet waits in the router, where it holds nothing and goes to
// the first free pair. The load on every worker: what this router has put there, which
// it counts exactly, and what other routers have, which is the rest of what a heartbeat reports, as
// it was when the heartbeat came.
#ifndef SERVICES_ROUTER_CORE_PAIRING_H_
#define SERVICES_ROUTER_CORE_PAIRING_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/types/instance.h"
#include "services/router/core/hash_ring.h"
#include "services/router/core/learned_cost.h"
#include "services/router/core/learned_limit.h"
#include "services/router/core/load_index.h"
#include "services/router/core/pair.h"
#include "services/router/core/policies/policy.h"
#include "services/router/core/prefix_index.h"
#include "services/router/core/roster.h"
#include "services/router/core/worker_info.h"

namespace baton::router {

// The pair that a request is tried again without.
struct FailedPair {
  Pair pair;
  Role leg = Role::kPrefill;  // Which of the two failed.

  bool HasChain(const Pair& other) const { return other.chain.stages == pair.chain.stages; }
  bool HasDecode(const Pair& other) const {
    return other.decode == pair.decode && other.followers == pair.followers;
  }
};

// What is asked for.
struct Ask {
  int prompt_tokens = 0;
  int max_tokens = 0;
  // Fewer than `max_tokens` will do, as many as the pair has room for beside the prompt; those that
  // have most room for it come first.
  bool clip = false;
  std::span<const uint64_t> prefix = {};  // PrefixKeys of the prompt.
  uint64_t routing_key = 0;               // RoutingKey; 0: none was given.

  uint64_t key() const { return routing_key != 0 || prefix.empty() ? routing_key : prefix[0]; }
};

// What the prediction of cached tokens says of a choice.
enum class ChoiceKind {
  kUncached,    // No candidate has any of the prompt.
  kCached,      // No candidate has more of it than the one that was chosen.
  kPassedOver,  // Another has.
};

struct Choice {
  Pair pair;
  ChoiceKind kind = ChoiceKind::kUncached;
  std::shared_ptr<const Considered> considered = nullptr;  // If Pairing was told to keep it.
};

// What a prompt finds on the chain that it was given to.
struct Predicted {
  int cached_tokens = 0;  // The least that the chain should report.
  uint64_t noted = 0;     // When the chain had them last (PrefixIndex).
};

class Pairing {
 public:
  // `seed`: of everything that is left to chance, `backoff`: how soon workers that refused are
  // asked again.
  explicit Pairing(Policy policy, uint64_t seed = 0, const BackoffRange& backoff = {});

  // The best pair of `roster` for a request. With `failed`, never that pair, and one with another
  // chain or decode in the place of the leg that failed if there is one; with another in the place
  // of the other leg too if that costs no waiting, since what failed may have been the connection
  // between the two, for which each blames the other. NOT_FOUND if the roster leaves no
  // choice, ContextOverflow (naming the limits) if the request fits into none of them,
  // RESOURCE_EXHAUSTED and Overloaded if there is no room on any of those that it is for at the
  // moment. In a small cluster all pairs are candidates; in a large one a few chains and decode
  // services are, and all only if none of these has room.
  absl::StatusOr<Choice> Choose(Roster& roster, const Ask& ask, const FailedPair* failed);
  // Whether Choose would find one of `pairs`, found by looking at each. For tests; defined in
  // testing/.
  bool CouldTake(const std::vector<Pair>& pairs, const Ask& ask, const FailedPair* failed) const;

  // Notes that the pair's chain is given the prompt, and says what it has of it by now.
  Predicted Note(const Pair& pair, const Ask& ask);
  // Other routers have given prompts of these keys to the chain of this stage 0. False: it is none
  // that a request can be given to now, and nothing is noted.
  bool NoteTaken(Roster& roster, const InstanceRef& stage0,
                 std::span<const std::vector<uint64_t>> prompts);
  // The chain has told how much of the prompt was cached.
  void Correct(const Pair& pair, const Predicted& predicted, int cached_tokens);
  // The chains have given up what they had cached.
  void DropPredictions();

  // The life of an attempt on a pair: prefill work ends before the decode's. What ends more often
  // than it began is counted as mended and goes no further: a wrong count costs balance, a router's
  // end every client.
  //
  // Begin returns whether the decode service has no room for it now, by what this router has put
  // there: the attempt will wait for its pages, and Granted is due when it has them, or ends. A
  // colocated chain tells of no pages, so none are due. `cached_tokens` of the prompt are no work.
  bool Begin(const Pair& pair, int prompt_tokens, int max_tokens, int cached_tokens = 0);
  void Granted(const Pair& pair, int prompt_tokens);
  void EndPrefill(const Pair& pair, int prompt_tokens, int cached_tokens = 0);
  void EndDecode(const Pair& pair, int prompt_tokens, int max_tokens);

  // What requests that went well took. A chain computed so many tokens of a prompt that it was
  // given at `begun_us`, and is through with it.
  void LearnPrompt(const Pair& pair, int computed_tokens, int64_t begun_us, int64_t now_us);
  // From the end of the prompt to the first token.
  void LearnExposed(const Pair& pair, int64_t exposed_us);
  // The answer took so long, and so long a token.
  void LearnAnswer(const Pair& pair, int64_t held_us, int64_t token_us);

  // Choices tell all that they went by.
  void KeepConsidered() { keeps_considered_ = true; }

  // The worker has refused the attempt, which still counts on it, for it is full.
  void Refused(const InstanceRef& instance, int64_t hint_us, int64_t now_us);
  // What workers have refused is tried again when it is time; when that is. kNeverUs: none has.
  void Advance(int64_t now_us);
  int64_t NextUs() const { return next_us_; }
  // Grows with everything that may have made room.
  uint64_t changes() const { return changes_; }

  // A heartbeat tells the whole load of a worker; what this router has not put there is others'.
  // `used_tokens`: in pages that are not free.
  void Report(const InstanceRef& instance, const WorkerLoad& load, int64_t used_tokens);

  // The worker is lost, or has left. What attempts still count on it stays until they end, since
  // the same incarnation may register again in between (its lease ended, it did not).
  void Forget(const InstanceRef& instance);

  // True when no attempt is counted anywhere. For tests; defined in testing/.
  bool AtRest() const;

  // How often inconsistent counts were corrected; 0 in a router without bugs.
  int64_t mended_total() const { return mended_total_; }

 private:
  // What this router has put on a worker, and what else is known of it. Colocated chains count as
  // chains and as decodes. First what choices read: of thousands of workers few are in the
  // processor's cache.
  struct Assigned {
    int64_t prompt_tokens = 0;     // Chains, by stage 0: given and not yet through.
    int64_t work_tokens = 0;       // The same without what is cached.
    int64_t context_tokens = 0;    // Decodes: reserved.
    int64_t ungranted_tokens = 0;  // Chains: of prompts that wait for decode's pages.
    int prompts = 0;               // Chains: not yet through.
    int ungranted = 0;             // Decodes: attempts that wait for its pages.
    int requests = 0;              // Chains: not yet through. Decodes: all.
    uint64_t last_used = 0;
    // Other routers' part of it, as reported last.
    int others_requests = 0;
    int64_t others_prompt_tokens = 0;
    int64_t others_context_tokens = 0;
    LearnedLimit limit;
    RecentMean exposed_us;
    RecentMean held_us;
    RecentMean token_us;
    RecentRatio pace;        // Chains: see PromptCost.
    int64_t through_us = 0;  // When the chain was through with a prompt last.
    bool lost = false;       // Forgotten, and here only for the attempts that go on.
    bool colocated = false;
    // In the roster; none: it cannot serve, or is no stage 0 or rank 0.
    std::optional<size_t> chain_slot;
    std::optional<size_t> decode_slot;

    int64_t all_requests() const { return int64_t{requests} + others_requests; }
    bool AtRest() const {
      return prompt_tokens == 0 && context_tokens == 0 && requests == 0 && ungranted == 0 &&
             ungranted_tokens == 0;
    }
  };
  static constexpr size_t kReadOften = 208;  // Bytes of it.
  static constexpr size_t kFewPairs = 64;    // So many are all candidates.
  struct HashInstance {
    size_t operator()(const InstanceRef& instance) const {
      return std::hash<std::string>()(instance.id) ^ Mix64(instance.incarnation);
    }
  };
  using WorkerMap = std::unordered_map<InstanceRef, Assigned, HashInstance>;
  // What is kept for a chain in the roster, or for a decode service.
  struct Slot {
    const Assigned* account = nullptr;  // Null: it cannot serve.
    PairLimits limits;                  // The side's.
    uint64_t owner = 0;                 // On the ring.
    double place = 0;                   // Candidate::place.
    int misses = 0;        // Answers in a row that had nothing cached of what was predicted.
    uint64_t life = 0;     // Names a chain's processes: with others it has nothing cached.
    InstanceRef instance;  // Stage 0, rank 0.
  };
  // One side of a pair that a request fits, as a choice looks at it.
  struct Half {
    size_t slot = 0;
    const Slot* kept = nullptr;
    int64_t clipped = 0;  // Tokens of max_tokens that there is no room for at all.
    bool same = false;    // It is the failed pair's.
    bool room = false;    // See HasRoom.
    bool full = false;    // A decode service: the request would wait.
    // Chains, of the prompt: see Candidate.
    int cached_tokens = 0;
    uint64_t ring_distance = 0;
  };
  // Compared in order; pairs of the least are those that a request is for, with room or not.
  struct Class {
    int64_t clipped = 0;
    bool again = false;  // The leg that failed would be used once more.
    auto operator<=>(const Class&) const = default;
  };
  struct Halves {
    std::vector<Half> chains;  // That do not decode.
    std::vector<Half> alone;   // Colocated chains.
    std::vector<Half> decodes;
  };

  // pairing_slots.cc
  void Follow(Roster& roster);
  void FollowChain(const SideTable& chains, size_t slot);
  void FollowDecode(const SideTable& decodes, size_t slot);
  void PlaceChains(const SideTable& chains);
  double LengthPlace(int prompt_tokens) const;
  // choice.cc
  // nullopt: the request does not fit, or the side cannot serve.
  std::optional<Half> ChainHalf(size_t slot, const Ask& ask) const;
  std::optional<Half> DecodeHalf(size_t slot, const Ask& ask) const;
  static bool MayPair(const Roster& roster, const Half& chain, const Half& decode);
  std::vector<size_t> SampleChains(const Ask& ask, const std::vector<PrefixIndex::Found>& holders);
  std::vector<size_t> SampleDecodes();
  static void Prefetch(const std::vector<Slot>& slots, const std::vector<size_t>& wanted);
  void Sample(const Roster& roster, const Ask& ask);
  // Finds candidates among all; the status if there are none.
  absl::Status Sweep(const Roster& roster, const Ask& ask, const FailedPair* failed);
  enum class Next { kPair, kChain, kStop };  // What to look at behind a pair.
  template <typename Look>
  static void VisitPairs(const Roster& roster, const Halves& halves, size_t begin, Look look);
  Halves AllHalves(const Roster& roster, const Ask& ask, const FailedPair* failed) const;
  static Class ClassOf(const Half& chain, const Half& decode, const FailedPair* failed);
  // nullopt: there is no pair that the request fits.
  static std::optional<Class> BestClass(const Roster& roster, const Halves& halves,
                                        const FailedPair* failed);
  // The chain has a part of `prefix` at most.
  void LookAtPrompt(Half& chain, const Ask& ask, std::span<const uint64_t> prefix) const;
  std::shared_ptr<const Considered> WhatWasConsidered(const Roster& roster, const Asked& asked,
                                                      size_t picked) const;
  void AddCandidate(const Half& chain, const Half& decode, const Ask& ask,
                    const FailedPair* failed);
  // no_choice.cc: why no pair is for the request.
  static absl::Status NoneFits(const Roster& roster, const Ask& ask, const FailedPair* failed);

  // Whether an attempt may begin there. Of each side no more is asked than it has refused lately
  // (LearnedLimit), and
  // - a chain is given prompts until they fill its pages: one prompt at most waits for those, and
  //   for as long as it does, pages of decode wait with it;
  // - a decode service is given attempts up to its slots, and one that its pages seem not to hold:
  //   it has more where requests share a prefix. Rejected: one beyond the slots, too. It would wait
  //   there, before what is then next here;
  // - a colocated chain is given requests until one of them waits for its pages or for a place.
  // Each router counts what it has given itself: the reported load is older than that.
  static bool HasRoom(const Assigned& chain, const PairLimits& limits);
  static bool HasRoom(const Assigned& decode, const PairLimits& limits, int64_t context_tokens);
  // By what this router has put there.
  static bool IsFull(const Assigned& decode, const PairLimits& limits, int64_t context_tokens);
  // By all that is known.
  static bool SeemsFull(const Assigned& decode, const PairLimits& limits, int64_t context_tokens);
  const Assigned& Of(const InstanceRef& instance) const;
  // Its load has changed.
  void Weigh(const Assigned& worker);
  // Drops a lost worker on which nothing is counted any more.
  void DropIfOver(WorkerMap::iterator worker);

  const Policy policy_;
  Random random_;
  const BackoffRange backoff_;
  WorkerMap workers_;
  std::vector<Slot> chains_;  // By the roster's slots.
  std::vector<Slot> decodes_;
  LoadIndex chain_loads_;
  LoadIndex decode_loads_;
  HashRing ring_;
  std::vector<size_t> by_name_;  // Chains, for Policy::kLengthBuckets.
  PrefixIndex index_;
  PromptCost prompt_cost_;
  std::array<double, 128> lengths_{};  // Tokens of recent prompts, by quarters of their logarithm.
  std::vector<Candidate> candidates_;  // The choice's that is made.
  uint64_t uses_ = 0;
  int64_t mended_total_ = 0;
  int64_t next_us_ = kNeverUs;  // No limit changes before.
  uint64_t changes_ = 0;
  bool keeps_considered_ = false;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PAIRING_H_
