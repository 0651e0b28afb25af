// The router's record of one request and of its current attempt, and the table of all of them.
// Plain data of RouterCore, which decides.
#ifndef SERVICES_ROUTER_CORE_TRANSACTION_H_
#define SERVICES_ROUTER_CORE_TRANSACTION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/types/sampled_token.h"
#include "common/types/turn.h"
#include "services/router/core/membership.h"
#include "services/router/core/pairing.h"
#include "services/router/core/router_core.h"

namespace baton::router {

enum class Phase {
  kWaiting,     // For a pair, or for room on one. No attempt.
  kReserving,   // Decode.Reserve is out.
  kPrefilling,  // The stream is open and the prompt is with the chain; it has drawn nothing yet.
  kDecoding,    // The attempt has drawn tokens, and the client has them.
  kSettling,    // The answer is complete; Start has still to say that the chain is through.
};
inline constexpr int kPhaseCount = 5;

// One try on one pair. A leg is open from its first call until it ended well or was aborted. On a
// colocated chain one call is both: decode is open until it ends, prefill until it tells of the
// prompt.
struct Attempt {
  uint64_t id = 0;  // 0: none.
  Pair pair;
  bool decode_open = false;
  bool prefill_open = false;
  bool prefill_counted = false;  // Its prompt still counts as work of the chain.
  bool decode_counted = false;   // Its tokens still count as work of the decode service.
  bool ungranted = false;        // It began on a full decode service, and waits for its pages.
  Predicted predicted;           // What its chain should have cached.
  // Told tokens that it reads behind the prompt, and whether it has still to draw the one behind
  // them, which the client has too: if it draws another one, its text is not the client's.
  int drawn_tokens = 0;
  bool redraws = false;
  int64_t begun_us = 0;
  int64_t prefill_us = 0;      // When the chain was given the prompt.
  int64_t through_us = 0;      // When it was through with it; 0: it is not.
  int64_t first_token_us = 0;  // When its first one came; 0: it has not.
};

struct Transaction {
  uint64_t call_id = 0;
  Turn turn;  // Among those that wait.
  std::string request_id;
  int prompt_tokens = 0;
  int max_tokens = 0;  // The attempt's, if there is one: `asked_tokens` or, with `clip`, fewer.
  int asked_tokens = 0;
  bool clip = false;
  std::vector<uint64_t> prefix;
  uint64_t routing_key = 0;
  std::string tenant;
  int64_t charged_tokens = 0;  // Taken from the tenant's.
  int64_t deadline_us = kNeverUs;
  int64_t timer_us = kNeverUs;  // The deadline, or the end of waiting or settling.
  int64_t waits_from_us = 0;
  double tag = 0;          // FairQueue's, from the first attempt on.
  bool has_begun = false;  // In FairQueue, which has not heard of its prompt's end.
  Phase phase = Phase::kWaiting;
  int attempts = 0;
  int handed_back = 0;     // Attempts returned by draining workers: no failures.
  int refused = 0;         // Attempts refused by full workers: no failures.
  int tokens = 0;          // Sent to the client,
  int32_t last_token = 0;  // the last of them.
  int resumes = 0;         // Attempts that began after the first token.
  int failed_resumes = 0;  // Failures after it, but for attempts that were handed back.
  bool excused = false;    // The wait that it is in has been prolonged by a pause of the router.
  bool prompt_logprobs = false;
  bool prompt_told = false;                   // Not again after a retry: it would be the same.
  std::vector<SampledToken> held;             // This attempt's, until the prompt is sent.
  FinishReason answer = FinishReason::kStop;  // Set while settling.
  Attempt attempt;
  // Pair of the last attempt that failed before this one, and its error.
  std::optional<FailedPair> failed;
  absl::Status failure;
  std::vector<Decision> decisions;  // With RouterLimits::tells_decisions.

  // For the next attempt: what has been told is read, but for the last token, which is drawn again.
  int drawn_tokens() const { return std::max(tokens - 1, 0); }
  Ask ask() const {
    return {prompt_tokens + drawn_tokens(), asked_tokens - drawn_tokens(), clip, prefix,
            routing_key};
  }
  // What the attempt reads, and may draw at most.
  int read_tokens() const { return prompt_tokens + attempt.drawn_tokens; }
  int new_tokens() const { return max_tokens - attempt.drawn_tokens; }
  bool AwaitsPrompt() const { return prompt_logprobs && !prompt_told; }
  // Whether the client's answer is complete but for the report.
  bool Complete() const { return phase == Phase::kSettling && !AwaitsPrompt(); }
  // Whether the chain still has work of this attempt, now or later.
  bool NeedsChain() const {
    return phase == Phase::kReserving || attempt.prefill_open ||
           (attempt.decode_open && attempt.pair.colocated());
  }
  bool NeedsDecode() const { return attempt.decode_open; }
  // Whether the decode service must stay: as above, and until the chain has its receipts.
  bool HoldsDecode() const { return attempt.decode_open || attempt.prefill_open; }
};

class TransactionTable {
 public:
  // The client's handle must be new. Pointers stay valid until Remove. It has no timer yet.
  Transaction& Add(Transaction transaction);
  void Remove(uint64_t call_id);

  Transaction* OfCall(uint64_t call_id);
  const Transaction* OfCall(uint64_t call_id) const;
  Transaction* OfRequest(const std::string& request_id);
  Transaction* OfAttempt(uint64_t attempt_id);

  void SetPhase(Transaction& transaction, Phase phase);
  void SetTimer(Transaction& transaction, int64_t when_us);
  void SetAttempt(Transaction& transaction, Attempt attempt);
  void ClearAttempt(Transaction& transaction);

  int64_t NextTimerUs() const { return timers_.empty() ? kNeverUs : timers_.begin()->first; }
  // The transaction whose timer is due first, or nullptr.
  Transaction* Due(int64_t now_us);

  // Calls of the transactions that `instance` still works for, in order.
  std::vector<uint64_t> CallsThatNeed(const InstanceRef& instance) const;

  // All of them, in order.
  std::vector<uint64_t> CallIds() const;

  // Transactions that `instance` may not leave before.
  int CountHeldBy(const InstanceRef& instance) const;

  int size() const { return static_cast<int>(transactions_.size()); }
  int CountOf(Phase phase) const { return phase_counts_[static_cast<size_t>(phase)]; }
  bool empty() const { return transactions_.empty(); }

  // The indexes agree with the transactions, recounted. For tests; defined in testing/.
  absl::Status CheckInvariants() const;

 private:
  // Ordered, so that a replay ends the requests of a lost worker in the same order.
  std::map<uint64_t, Transaction> transactions_;  // By client.
  std::unordered_map<std::string, uint64_t> call_of_request_;
  std::unordered_map<uint64_t, uint64_t> call_of_attempt_;
  std::set<std::pair<int64_t, uint64_t>> timers_;  // (timer_us, client)
  std::array<int, kPhaseCount> phase_counts_{};
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_TRANSACTION_H_
