// What router_core.h promises of requests, held against every event that a router hears and every
// action that it takes: who begins, waits, is tried again and ends, with what, on which pair, and
// what is counted. An account from outside that shares no code with the router.
#ifndef TESTS_SIM_ROUTER_WITNESS_H_
#define TESTS_SIM_ROUTER_WITNESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "services/router/core/router_core.h"
#include "tests/sim/members_witness.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class RouterWitness {
 public:
  RouterWitness(World& world, const Topology& topology, const router::RouterLimits& limits,
                const std::string& name)
      : world_(world), limits_(limits), name_(name), members_(world, topology, limits, name) {}

  // After every Handle.
  void Saw(const router::Event& event, const std::vector<router::Action>& actions,
           const router::RouterCore& core);

 private:
  enum class Phase { kWaiting, kReserving, kPrefilling, kDecoding, kSettling };
  // How a request ends.
  struct End {
    std::optional<FinishReason> reason;  // Else an error:
    absl::StatusCode code = absl::StatusCode::kOk;
    std::string leg;
    std::string instance;
    bool by_drain = false;
    bool overloaded = false;
  };
  // What becomes of a request whose attempt has failed in this event.
  struct Failure {
    absl::Status status;
    Role blamed = Role::kDecode;
    router::Pair pair;
    bool full = false;         // A full worker's refusal.
    bool handed_back = false;  // By a drain.
    bool goes_on = false;      // Tried again, or waits for that.
    bool must_begin = false;   // At once: there is another pair with room.
    bool of_text = false;      // It had told tokens.
    bool takes_budget = false;
    bool lacks_budget = false;  // And nothing else.
    End otherwise;
  };
  struct Request {
    router::CallSubmitted asked;
    uint64_t order = 0;  // Order of admission.
    Phase phase = Phase::kWaiting;
    int attempts = 0;
    int refused = 0;
    int handed_back = 0;
    int told = 0;          // Tokens.
    int drawn = 0;         // So many of them the last attempt reads, or the next one will.
    bool redraws = false;  // The attempt has to draw a told one again.
    int resumes = 0;
    int failed_resumes = 0;
    int held = 0;  // Tokens, until the prompt is told.
    bool prompt_told = false;
    bool excused = false;
    FinishReason answer = FinishReason::kStop;
    int64_t until_us = kNeverUs;  // The end of waiting for a pair, or of settling.
    uint64_t attempt = 0;         // 0: none is under way.
    router::Pair pair;            // The last attempt's pair.
    bool decode_open = false;
    bool prefill_open = false;
    bool prefill_counts = false;  // As work of the chain.
    bool began_full = false;      // The decode service had no room for it.
    bool perhaps_full = false;    // Or perhaps had none: others failed at the same time.
    std::optional<Failure> failing;
    std::optional<Failure> failed;  // The last one, but for refusals.

    bool awaits_prompt() const { return asked.prompt_logprobs && !prompt_told; }
    bool complete() const { return phase == Phase::kSettling && !awaits_prompt(); }
    bool waits() const { return phase == Phase::kWaiting && !failing.has_value(); }
    bool needs_chain() const {
      const bool decodes = decode_open && pair.colocated();
      return attempt != 0 && (phase == Phase::kReserving || prefill_open || decodes);
    }
    bool UsesChain(const InstanceRef& instance) const;
    bool UsesDecode(const InstanceRef& instance) const;
    int64_t PromptIn(const router::Pair& of) const;   // Tokens of whole pages.
    int64_t ContextIn(const router::Pair& of) const;  // The same, with what may follow.
  };
  struct Others {  // What other routers have put on a worker, by its last heartbeat.
    int64_t prompt_tokens = 0;
    int64_t context_tokens = 0;
    int requests = 0;
  };
  struct Work {  // And this one.
    int64_t prompt_tokens = 0;
    int64_t context_tokens = 0;
    int chain_requests = 0;
    int decode_requests = 0;
    int64_t granted_tokens = 0;  // Part of prompt_tokens that has decode's pages, or surely will.
    int ungranted = 0;           // Requests that found the decode service full and wait for it.
    // Requests that may or may not be granted: it cannot be told from outside.
    int64_t perhaps_granted_tokens = 0;
    int perhaps_ungranted = 0;
  };

  struct Cap {         // On a worker that has refused for want of room.
    int requests = 0;  // This router's requests until then.
    int64_t until_us = 0;
    int64_t refused_us = 0;  // The last time.
  };

  void Hear(const router::CallSubmitted& event);
  void Hear(const router::ClientGone& event);
  void Hear(const router::AbortCalled& event);
  void Hear(const router::StopMatched& event);
  void Hear(const router::ReserveReplied& event);
  void Hear(const router::TokenReceived& event);
  void Hear(const router::DecodeEnded& event);
  void Hear(const router::PrefillEnded& event);
  void Hear(const router::RouterDrainBegan& event);
  void Hear(const router::HeartbeatReceived& event);
  void Hear(const router::Tick& event);
  template <typename Other>
  void Hear(const Other&) {}
  std::optional<End> RefusalOf(const router::CallSubmitted& event);
  // Requests of which one gives up its place in the queue to one of that tenant: the last ones of
  // the tenants that have the most, which is two more than it has at least.
  std::set<uint64_t> WhoGivesWayTo(const std::string& tenant) const;
  void HearLost(const MembersWitness::Lost& lost);
  void HearPause();
  void HearTimer(Request& request);
  void HearDrainEnd();

  void Fail(Request& request, Role reporter, absl::Status status);
  void JudgeRefused(const Request& request, Failure& failure);
  void JudgeFailed(const Request& request, Failure& failure, bool first);
  void Complete(Request& request, FinishReason reason);
  End EndOfDrained(const Request& request);
  void Tell(Request& request, int tokens);
  void Serves(Request& request);
  void MustEnd(const Request& request, End end);
  void MustClose(Request& request);
  void MustCloseDecode(Request& request);

  // An attempt, with its first call.
  template <typename Action>
  void SeeBegin(const Action& action, const InstanceRef& decode,
                const std::vector<KvWriter>& writers);
  void See(const router::Reserve& action);
  void See(const router::OpenStream& action);
  void See(const router::StartPrefill& action);
  void See(const router::StartGeneration& action);
  void See(const router::AbortPrefill& action);
  void See(const router::AbortDecode& action);
  void See(const router::DeliverPrompt& action);
  void See(const router::DeliverToken& action);
  void See(const router::FinishCall& action);
  void See(const router::AnswerHeartbeat& action);
  void See(const router::ReplyAbort& action);
  template <typename Other>
  void See(const Other&) {}
  void GoOn(Request& request);
  void Wait(Request& request);
  enum class Room { kCertain, kPossible };
  // The pair that an attempt has to begin on, and the one it begins on.
  void CheckChoice(const Request& request, const router::Pair& chosen);
  using Cost = std::tuple<bool, bool, bool, bool, int64_t, int, uint64_t, uint64_t>;
  Cost CostOf(const Request& request, const router::Pair& pair, Room room) const;
  void CheckEnd(const router::FinishCall& action, const End& end);

  void CheckDone();
  void CheckWaiting();
  void CheckLoad(const router::RouterLoad& load);
  void CheckTimer(const router::RouterCore& core) const;
  void ForgetLost();
  void Complain(uint64_t call_id, const std::string& what);

  Request* OfAttempt(uint64_t attempt_id);
  Request* OfCall(uint64_t call_id);
  int CountOf(Phase phase) const;
  int CountWaiting() const;  // Without those that have just failed.
  bool BudgetAllows();
  int64_t PairAwaitedUntilUs() const;
  // Whether some ready pair, but not the failed one, takes the request. `with_room`: at once, as
  // far as can be told for certain; then with another worker in the failed one's place if there is
  // one.
  bool FitsSome(const Request& request, const Failure* failed, bool with_room);
  void HearRefusal(const InstanceRef& worker, const absl::Status& refusal);
  bool IsCapped(const InstanceRef& worker, int requests) const;
  // By what this router itself has put there.
  bool HasRoom(const Request& request, const router::Pair& pair, Room room) const;
  bool IsFull(const Request& request, const router::Pair& pair) const;
  static bool UsesFailed(const router::Pair& pair, const Failure& failed);
  // That it does not go before others of its tenant.
  void CheckHeadStart(const Request& request, int64_t head_start_us);
  Work WorkOn(const InstanceRef& instance) const;

  World& world_;
  const router::RouterLimits& limits_;
  const std::string name_;
  MembersWitness members_;
  std::map<uint64_t, Request> requests_;  // By call.
  std::map<uint64_t, uint64_t> calls_;    // By attempt, of those that are not over.
  uint64_t admitted_ = 0;
  uint64_t attempts_ = 0;
  bool wait_for_room_ = false;         // All who wait; else for a pair.
  int64_t pair_awaited_until_us_ = 0;  // After a pause.
  int64_t next_pause_counts_from_us_ = 0;
  std::map<InstanceRef, Cap> limited_;  // Workers that have ever refused for want of room.
  std::deque<int64_t> begun_s_;         // Start times of recent requests.
  std::deque<int64_t> retried_s_;       // Times of recent retries charged to the budget.
  std::map<InstanceRef, Others> others_;
  int64_t refuse_from_us_ = kNeverUs;
  int64_t drain_ends_us_ = kNeverUs;
  router::RouterLoad totals_;
  bool counts_certain_ = true;                 // What is counted could always be told from outside.
  std::map<InstanceRef, uint64_t> last_used_;  // By the order of attempts.
  std::set<InstanceRef> lost_;  // Lost workers that have work of requests that go on.

  // State for the event being checked.
  std::map<uint64_t, End> ends_due_;  // By call.
  // One of these is to give way in this event; or, if the one that it was to be had told tokens,
  // which cannot be seen from outside where several have as many, the new one is refused.
  std::set<uint64_t> give_way_;
  std::optional<uint64_t> perhaps_refused_;
  std::map<uint64_t, int> tokens_due_;            // By call.
  std::optional<router::ReserveReplied> ticket_;  // That a leg is opened with.
  bool stream_due_ = false;
  bool start_due_ = false;
  std::map<uint64_t, InstanceRef> closes_prefill_;  // Legs that must be closed, by attempt.
  std::map<uint64_t, InstanceRef> closes_decode_;
  std::optional<uint64_t> prompt_due_;  // Call.
  std::optional<absl::StatusCode> abort_reply_due_;
  std::optional<int> needed_requests_due_;
  bool drain_over_ = false;
  bool anybody_fails_ = false;
  bool serves_ = false;  // A first token: it may make room, and end a probation.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_ROUTER_WITNESS_H_
