// Which pair takes a request, and when one has room for it: what it gives to workers holds KV pages
// there, so a request that can't begin yet waits in the router, where it holds nothing and goes to
// the first free pair. The load on every worker: what this router has put there, which
// it counts exactly, and what other routers have, which is the rest of what a heartbeat reports, as
// it was when the heartbeat came.
#ifndef SERVICES_ROUTER_CORE_PAIRING_H_
#define SERVICES_ROUTER_CORE_PAIRING_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/types/instance.h"
#include "common/types/ticket.h"
#include "services/router/core/learned_limit.h"
#include "services/router/core/membership.h"

namespace baton::router {

enum class Policy { kRoundRobin, kLeastLoad };

// As --load-balance-policy has it, whose values were checked: "round_robin", "least_load".
Policy ParsePolicy(const std::string& name);

// The pair that a request is tried again without.
struct FailedPair {
  Pair pair;
  Role leg = Role::kPrefill;  // Which of the two failed.
};

class Pairing {
 public:
  // `seed`: of the jitter with which workers that refused are asked again, `backoff`: how soon.
  explicit Pairing(Policy policy, uint64_t seed = 0, const BackoffRange& backoff = {})
      : policy_(policy), random_(seed), backoff_(backoff) {}

  // The best of `pairs` for a request. With `failed`, never that pair, and one with another chain
  // or decode in the place of the leg that failed if there is one; with another in the place of the
  // other leg too if that costs no waiting, since what failed may have been the connection between
  // the two, for which each blames the other. NOT_FOUND if `pairs` leaves no
  // choice, ContextOverflow (naming the limits) if the request fits into none of them,
  // RESOURCE_EXHAUSTED and Overloaded if there is no room on any of those that it is for at the
  // moment. `clip`: fewer than `max_tokens` will do, as many as the pair has room for beside the
  // prompt; those that have most room for it come first.
  absl::StatusOr<Pair> Choose(const std::vector<Pair>& pairs, int prompt_tokens, int max_tokens,
                              const FailedPair* failed, bool clip = false) const;

  // The life of an attempt on a pair: prefill work ends before the decode's. What ends more often
  // than it began is counted as mended and goes no further: a wrong count costs balance, a router's
  // end every client.
  //
  // Begin returns whether the decode service has no room for it now, by what this router has put
  // there: the attempt will wait for its pages, and Granted is due when it has them, or ends. A
  // colocated chain tells of no pages, so none are due.
  bool Begin(const Pair& pair, int prompt_tokens, int max_tokens);
  void Granted(const Pair& pair, int prompt_tokens);
  void EndPrefill(const Pair& pair, int prompt_tokens);
  void EndDecode(const Pair& pair, int prompt_tokens, int max_tokens);

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

  // True when no attempt is counted anywhere.
  bool AtRest() const;

  // How often inconsistent counts were corrected; 0 in a router without bugs.
  int64_t mended_total() const { return mended_total_; }

 private:
  // Colocated chains count as chains and as decodes.
  struct Assigned {
    bool lost = false;             // Forgotten, and here only for the attempts that go on.
    int64_t prompt_tokens = 0;     // Chains, by stage 0: given and not yet through.
    int64_t context_tokens = 0;    // Decodes: reserved.
    int64_t ungranted_tokens = 0;  // Chains: of prompts that wait for decode's pages.
    int ungranted = 0;             // Decodes: attempts that wait for its pages.
    int requests = 0;              // Chains: not yet through. Decodes: all.
    uint64_t last_used = 0;
    LearnedLimit limit;
    bool AtRest() const {
      return prompt_tokens == 0 && context_tokens == 0 && requests == 0 && ungranted == 0 &&
             ungranted_tokens == 0;
    }
  };
  using WorkerMap = std::map<InstanceRef, Assigned>;
  // Other routers' part of it, as reported last.
  struct Others {
    int64_t prompt_tokens = 0;
    int64_t context_tokens = 0;
    int requests = 0;
  };
  // Compared in order; the lowest wins.
  struct Cost {
    int64_t clipped = 0;        // Tokens of max_tokens that there is no room for.
    bool again = false;         // The leg that failed would be used once more.
    bool no_room = false;       // See HasRoom.
    bool full = false;          // The decode has no room now: the request would wait.
    bool beside = false;        // The other leg of the failed pair would be used once more.
    int64_t prompt_tokens = 0;  // Before it in the chain.
    int requests = 0;           // On the decode.
    uint64_t chain_used = 0;    // When it was, last.
    uint64_t decode_used = 0;
    auto operator<=>(const Cost&) const = default;
  };
  Cost CostOf(const Pair& pair, int64_t context_tokens, const FailedPair* failed) const;
  // Whether an attempt may begin there. Of each side no more is asked than it has refused lately
  // (LearnedLimit), and
  // - a chain is given prompts until they fill its pages: one prompt at most waits for those, and
  //   for as long as it does, pages of decode wait with it;
  // - a decode service that is full is given one attempt, which has its pages as soon as there are
  //   some;
  // - a colocated chain is given requests until one of them waits for its pages or for a place.
  // Each router counts what it has given itself: the reported load is older than that.
  bool HasRoom(const Pair& pair, int64_t context_tokens) const;
  // By what this router has put there.
  bool DecodeIsFull(const Pair& pair, int64_t context_tokens) const;
  const Assigned& Of(const InstanceRef& instance) const;
  const Others& OthersOn(const InstanceRef& instance) const;
  // Drops a lost worker on which nothing is counted any more.
  void DropIfOver(WorkerMap::iterator worker);

  Policy policy_;
  Random random_;
  const BackoffRange backoff_;
  WorkerMap workers_;
  std::map<InstanceRef, Others> others_;
  uint64_t uses_ = 0;
  int64_t mended_total_ = 0;
  int64_t next_us_ = kNeverUs;  // No limit changes before.
  uint64_t changes_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PAIRING_H_
