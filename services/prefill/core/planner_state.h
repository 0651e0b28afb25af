// What the planner holds; private to its source files.
#ifndef SERVICES_PREFILL_CORE_PLANNER_STATE_H_
#define SERVICES_PREFILL_CORE_PLANNER_STATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/chunking/chunk_plan.h"
#include "common/chunking/chunk_policy.h"
#include "common/chunking/cost_fit.h"
#include "common/chunking/stage_cost.h"
#include "common/kv/block_pool.h"
#include "common/kv/page_tree.h"
#include "common/types/instance.h"
#include "common/types/turn.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/plan.h"

namespace baton::prefill {

// When a stage of several ranks is done with a plan: when all of them are. Plain, for the planner.
class RankTally {
 public:
  explicit RankTally(int ranks) : done_(static_cast<size_t>(ranks), 0) {}

  // `rank` is done with a plan, and so with those before it. Returns what the stage is done with by
  // that, in order. All ranks end a plan together, with its last sum, so it took as long as on the
  // rank that came last: what the others say holds their wait for it, which tells of messages that
  // were late and not of what the plan costs. The stage waited for the plan as long as the first to
  // begin. One that was said before is nothing new.
  std::vector<PlanDone> Add(int rank, const PlanDone& done) {
    uint64_t& last = done_[static_cast<size_t>(rank)];
    if (done.number <= last) return {};
    last = done.number;
    const auto [open, is_first] = open_.try_emplace(done.number);
    PlanDone& plan = open->second;
    plan.number = done.number;
    plan.compute_us = is_first ? done.compute_us : std::min(plan.compute_us, done.compute_us);
    plan.wait_us = is_first ? done.wait_us : std::min(plan.wait_us, done.wait_us);
    if (rank == 0) {  // Which samples.
      plan.prompt_tokens = done.prompt_tokens;
      plan.drawn = done.drawn;
    }
    std::vector<PlanDone> over;
    const uint64_t by_all = *std::min_element(done_.begin(), done_.end());
    while (!open_.empty() && open_.begin()->first <= by_all) {
      over.push_back(std::move(open_.begin()->second));
      open_.erase(open_.begin());
    }
    return over;
  }

  // The rank furthest behind, the first if there are several.
  int slowest() const {
    return static_cast<int>(std::min_element(done_.begin(), done_.end()) - done_.begin());
  }

 private:
  std::vector<uint64_t> done_;         // By rank: number of the last plan that it is done with.
  std::map<uint64_t, PlanDone> open_;  // That some rank is done with; as many as are in flight.
};

// Members of a chain that have not said something yet.
class MembersLeft {
 public:
  MembersLeft() = default;
  explicit MembersLeft(int members) : left_(static_cast<size_t>(members), true), count_(members) {}

  // Whether it had not been said yet.
  bool Strike(int member) {
    const auto at = static_cast<size_t>(member);
    if (!left_.at(at)) return false;
    left_[at] = false;
    --count_;
    return true;
  }
  bool none() const { return count_ == 0; }

 private:
  std::vector<bool> left_;
  int count_ = 0;
};

// How long before stage 0 is predicted to be free it has its next plan: enough for the plan to
// reach all processes, and a part of what runs, for predictions that are too long.
constexpr int64_t kIssueLeadUs = 5'000;
constexpr int64_t kStepIssueLeadUs = 1'000;  // Decode steps alone are predicted better.
constexpr int64_t kIssueLeadPart = 8;

struct ChainPlanner::State {
  // From a request's admission until every member has drained it.
  struct Grant {
    uint32_t slot = 0;
    uint64_t generation = 0;
    MembersLeft not_granted;
    MembersLeft not_committed;
    MembersLeft not_drained;
    bool revoked = false;
    std::optional<SampledToken> first_token;  // As the table of who draws has committed it.
  };

  struct Request {
    std::optional<Ticket> ticket;  // None: the chain decodes it.
    int prompt_tokens = 0;
    int64_t deadline_us = kNeverUs;
    int64_t arrived_us = 0;
    int priority = 0;
    int64_t head_start_us = 0;
    Turn turn;
    int64_t first_plan_us = 0;
    bool prompt_logprobs = false;

    bool open = false;          // Owns `pages`.
    bool told = false;          // Its PlanOpen is out.
    bool finished = false;      // FinishRequest is out; stays until the stages have closed it.
    bool retracting = false;    // Gives its pages back, and waits again when it is closed.
    bool abort_issued = false;  // In a plan.
    std::vector<int> pages;
    int new_page = -1;         // The last of these, if no plan has told it yet.
    int read_tokens = 0;       // The prompt, and what was drawn before it was retracted.
    int planned_tokens = 0;    // The cached ones among them.
    int computed_tokens = 0;   // By the last stage.
    int given_tokens = 0;      // In the plan that is being built.
    uint64_t last_plan = 0;    // The last one that names it.
    std::vector<bool> closed;  // By stage and rank.

    // Without a ticket.
    StopRule stop;
    int token_limit = 0;        // New tokens: max_tokens, or what the context leaves.
    std::vector<int32_t> text;  // What was drawn.
    int64_t drawn_us = 0;       // When the last of it came.

    // The prefix cache.
    std::shared_ptr<const std::vector<int32_t>> tokens;  // That it reads. Null: it has no part.
    std::string cache_salt;
    PageTree::Match match;    // While it waits: what it would have, not pinned.
    PageTree::Prefix prefix;  // Those of `pages` that belong to the tree.

    // Whose KV others write.
    std::vector<KvWriter> writers;  // Until its commit, or until it is to be read here.
    bool has_ticket = false;
    bool foreign = false;  // By another number of ranks than the chain's: its bits may differ.
    std::optional<Grant> grant;

    // Since when the stages have only to close it, and no caller waits for it.
    int64_t over_us = kNeverUs;
    PrefillOutcome outcome;

    // Once every stage is done with it.
    absl::Status CheckPromptTokens() const;
    // To read, that are in no plan, nor in the one that is being built.
    int tokens_left() const {
      return ending() ? 0 : std::max(read_tokens - planned_tokens - given_tokens, 0);
    }
    bool fully_planned() const { return planned_tokens >= read_tokens; }
    int drawn() const { return static_cast<int>(text.size()); }
    bool decoding() const { return prompt_tokens + drawn() > read_tokens && !finished; }
    // The text's, that the next decode step feeds.
    size_t next_fed() const { return static_cast<size_t>(planned_tokens - prompt_tokens); }
    int kv_tokens() const { return prompt_tokens + token_limit; }
    bool may_give_way() const { return !ticket.has_value(); }
    // The next plan closes it on every stage, or an earlier one has.
    bool ending() const { return finished || retracting; }
  };

  // A plan that some stage isn't done with, and the chunks that its timings belong to.
  struct IssuedPlan {
    uint64_t number = 0;
    int64_t issued_us = 0;
    std::vector<std::pair<uint64_t, size_t>> chunks;  // attempt, index in its outcome
    // By stage; kNeverUs: it is not done with it.
    std::vector<int64_t> done_us;
    std::vector<int64_t> compute_us;
    std::vector<uint64_t> draws;       // Attempts: of these the last stage draws a token.
    PlanWork work;                     // All items,
    bool has_chunks = false;           // of which some are chunks.
    std::vector<double> predicted_us;  // By stage; empty if costs were not known.
  };

  explicit State(const PlannerLimits& planner_limits);

  void On(const ChainUp& event, int64_t now_us);
  void On(const ChainDown& event, int64_t now_us);
  void On(const StartRequested& event, int64_t now_us);
  void On(const AbortRequested& event, int64_t now_us);
  void On(const StagePlanDone& event, int64_t now_us);
  void StageDone(size_t stage, const PlanDone& plan_done, int64_t now_us);
  void On(const StageRequestClosed& event, int64_t now_us);
  void On(const DrainBegan& event, int64_t now_us);
  void On(const Tick& /*event*/, int64_t /*now_us*/) {}

  Request* Find(uint64_t attempt_id);            // nullptr: there is none.
  Request* FindUnfinished(uint64_t attempt_id);  // nullptr: none, or it is finished.
  void CheckPlace(int stage, int rank) const;
  void TakePromptTokens(const PromptTokens& told);
  Request RequestOf(const StartRequested& event) const;
  absl::Status Readiness() const;
  absl::Status CheckStart(const StartRequested& event) const;
  void Fail(uint64_t attempt_id, absl::Status status);
  void ExpireDeadlines(int64_t now_us);
  void Close(uint64_t attempt_id, Request& request);
  void ReleaseIfClosed(uint64_t attempt_id);
  void Finish(uint64_t attempt_id, Request& request, absl::Status status,
              FinishReason reason = FinishReason::kLength);

  // planner_progress.cc
  absl::Status RefuseToBegin();
  void EndDrain(int64_t now_us);

  // The stages have been told all of it.
  bool ToldInFull(const Request& request) const {
    return (request.ticket.has_value() && request.fully_planned()) || request.abort_issued;
  }
  bool Current(uint64_t event_epoch) const { return event_epoch == epoch; }

  // planner_queue.cc
  static int64_t UserHeadStartUs(const Request& request);
  int64_t HeadStartUs(const Request& request) const;
  void Enqueue(uint64_t attempt_id);
  void Dequeue(uint64_t attempt_id);
  bool HasRoomFor(int pages) const;
  bool MayAdmitOldest() const;  // The queue must not be empty.
  bool MayOvertake(uint64_t attempt_id) const;
  void Open(uint64_t attempt_id, int64_t now_us);
  void Admit(uint64_t attempt_id, Plan& plan, int64_t now_us);

  // planner_cache.cc
  void On(const FlushCache& event, int64_t now_us);
  int AvailablePages() const;             // Free, or given up by the cache.
  std::vector<int> TakePages(int count);  // So many must be available.
  bool FitsWithItsMatch(uint64_t attempt_id) const;
  PageTree::Match MatchOf(const Request& request) const;
  void TakeMatch(uint64_t attempt_id);
  void AllocatePages(uint64_t attempt_id);
  void KeepPlanned(Request& request);
  void ReleasePages(Request& request);

  // planner_grants.cc
  void On(const MemberGranted& event, int64_t now_us);
  void On(const KvHeard& event, int64_t now_us);
  void BeginGrants(const ChainUp& event);
  void AdmitGrants(int64_t now_us);
  bool GrantNext(int64_t now_us);
  void GiveTicket(uint64_t attempt_id, Request& request);
  Request* HolderOf(uint32_t slot, uint64_t generation, uint64_t& attempt_id);
  void HeardCommitted(int member, const KvCommitted& event, int64_t now_us);
  void HeardDrained(int member, const KvDrained& event);
  int members() const { return static_cast<int>(done.size()) * ranks; }
  int WhoDrawsHere() const { return members() - ranks; }  // The last stage's rank 0.
  void Commit(uint64_t attempt_id, Request& request, int64_t now_us);
  void Revoke(Request& request);
  void Tell(uint64_t attempt_id, Request& request, Plan& plan);
  void HandBackWaiting();
  const char* WhatItAwaits(const Request& request) const;
  bool IsGranted(uint64_t attempt_id) const { return !requests.at(attempt_id).writers.empty(); }

  // planner_decoding.cc
  absl::Status CheckDecoded(const StartRequested& event) const;
  int TokenLimitOf(const StartRequested& event) const;
  void AddRows(Plan& plan, int64_t now_us);
  size_t PlansThatDraw() const;  // That are under way.
  bool FeedsAhead() const {
    return limits.feeds_ahead && limits.extra_slots == 0 && done.size() == 1 && ranks == 1;
  }
  size_t Slots() const {
    return done.size() + static_cast<size_t>(limits.extra_slots) + (FeedsAhead() ? 1 : 0);
  }
  void FeedAhead(uint64_t attempt_id);
  double AheadMicros() const;
  double MicrosOf(const PlanWork& work) const;
  int PagesWithin(double micros, int prefix_length, int most) const;
  int BoundByTime(int prefix_length, int tokens) const;
  void TakeDrawn(const std::vector<uint64_t>& draws, const PlanDone& plan_done, int64_t now_us);
  bool TakeToken(uint64_t attempt_id, Request& request, const SampledToken& token);

  // planner_growth.cc
  int AdmissionTokens(const Request& request) const;
  int ExpectedPages(const Request& request) const;
  int WantedPages(uint64_t attempt_id) const;
  void ExpectGrowth();
  double GrowthShareAtFirst() const;
  void ExpectLessGrowth();
  void ExpectMoreGrowth();
  bool HasPageForRow(const Request& request) const;
  void GrowRows();
  bool MakeRoomForRows();
  int PagesToReturn(const Request& request) const;
  void Retract(uint64_t attempt_id);
  void Requeue(uint64_t attempt_id);

  // planner_shares.cc
  bool MayIssue() const;
  int64_t HeldUntilUs() const;
  void IssuePlans(int64_t now_us);
  Plan BuildPlan(int64_t now_us);
  // Its chunks are in their requests' outcomes from now on.
  IssuedPlan RecordOf(const Plan& plan, int64_t now_us);
  int64_t UnplannedTokens() const;  // All requests'.
  int TokensLeft(uint64_t attempt_id) const { return requests.at(attempt_id).tokens_left(); }
  bool HasTokensLeft(uint64_t attempt_id) const { return TokensLeft(attempt_id) > 0; }
  const uint64_t* Leader() const;
  bool OldestBegins() const;
  const uint64_t* NextLeader() const;
  // Budgets, shares and prices are in tokens of the plan's leader (TokenPrices).
  double SetBudget(uint64_t leader);
  double PriceLeft(uint64_t attempt_id) const;
  double NextPagePrice(uint64_t attempt_id) const;
  double InPages(double tokens) const {
    return std::ceil(tokens / limits.page_size) * limits.page_size;
  }
  void ShareOut(Plan& plan, int64_t now_us);
  double ShareWithShorter(uint64_t leader, double credit, double budget, Plan& plan,
                          int64_t now_us);
  bool EndsBeforeOthers(uint64_t leader, double budget) const;
  std::vector<uint64_t> OpenAndShorter(double price) const;
  std::optional<uint64_t> NextToBegin(double shorter_than) const;
  void FillInOrder(uint64_t leader, double budget, Plan& plan, int64_t now_us);
  double Give(uint64_t attempt_id, double budget, int room);
  bool PlansHoldWholePrompts() const {
    return limits.chunk_rule == ChunkRule::kFixed &&
           limits.chunk_tokens >= limits.max_context_tokens;
  }

  int PagesFor(int tokens) const { return (tokens + limits.page_size - 1) / limits.page_size; }
  // That it takes when it is admitted.
  int PagesOf(uint64_t attempt_id) const {
    return PagesFor(AdmissionTokens(requests.at(attempt_id)));
  }
  uint64_t DoneEverywhere() const { return *std::min_element(done.begin(), done.end()); }

  // planner_progress.cc
  void KeepFitsFor(const ChainUp& event);
  void LearnFrom(const IssuedPlan& plan, size_t stage);
  void UseCosts();
  int64_t ProgressDueUs(size_t stage) const;
  int64_t NextProgressUs() const;
  int64_t CloseDueUs(const Request& request) const;
  void CheckClosings(int64_t now_us);
  void FailAt(int stage, int rank, absl::Status status);
  void CheckProgress(int64_t now_us);

  void Emit(PlannerAction action) { actions->push_back(std::move(action)); }

  const PlannerLimits limits;
  const std::unique_ptr<ChunkPolicy> policy;

  bool up = false;
  absl::Status down_reason = absl::UnavailableError("its stages have not been linked yet");
  uint64_t epoch = 0;
  std::optional<BlockPool> pool;
  std::optional<PageTree> tree;  // Its pages are owned in the pool.
  uint64_t evicted_pages_total = 0;
  int rows_in_want = 0;     // Decoding requests without a page for their next token.
  double growth_share = 0;  // What texts are expected to have of what they still may.
  int growth_pages = 0;     // That open requests are expected to take yet.
  uint64_t retractions_total = 0;
  uint64_t issued = 0;               // Number of the last plan.
  int64_t held_until_us = kNeverUs;  // The next one; kNeverUs: it is not held back.
  std::vector<uint64_t> done;        // By stage: number of the last plan that it is done with.
  std::vector<RankTally> tallies;    // By stage.
  int ranks = 1;                     // In each stage.
  std::deque<IssuedPlan> plans;
  std::vector<int64_t> last_done_us;  // By stage: when it was done with any plan.
  int64_t last_step_us = 0;           // What decode steps alone took last; 0: none were computed.
  bool chain_failed = false;          // FailChain is out; the epoch is about to end.

  std::vector<CostFit> fits;     // By stage; they outlive an epoch.
  std::vector<int> fit_layers;   // By stage; empty if ChainUp did not say.
  std::vector<StageCost> costs;  // For every stage, or empty.

  // For the plan that is being built.
  TokenPrices prices;
  int room_tokens = 0;                // Tokens of chunks it may still hold, whatever they cost.
  bool bounded_by_time = false;       // It has fewer for that.
  PlanWork row_work;                  // Its decode steps'.
  bool decodes_now = false;           // Some request decodes, whether it has a step in it or not.
  std::vector<int64_t> row_waits_us;  // As IssuePlan's.

  std::map<uint64_t, Request> requests;
  std::deque<uint64_t> queue;  // Waiting; the next one first.
  // Those that the chain itself reads: tokens to read, turn, attempt.
  std::set<std::tuple<int, Turn, uint64_t>> waiting_by_size;
  std::vector<uint64_t> open;        // In the chain, by their turns.
  std::vector<uint64_t> aborts_due;  // For the next plan.
  // To be fed their next token, which is drawn or, if plans feed ahead, in a plan that draws it;
  // the longest first.
  std::deque<uint64_t> ready;
  uint64_t arrived = 0;
  double shared_credit = 0;                          // Shorter prompts' share, not used yet.
  std::set<std::pair<int64_t, uint64_t>> deadlines;  // For unfinished requests.

  // Grants, where requests come so.
  std::map<uint64_t, uint64_t> grants;  // Generation -> attempt, until it is drained: by age.
  std::deque<uint32_t> free_slots;
  std::vector<InstanceRef> followers;
  std::vector<LayerRange> granted_layers;  // By stage.
  uint64_t last_generation = 0;
  uint64_t reused_pages_total = 0;
  // The queue's head found too little when this was so, and looks again when it is not, since
  // looking reads its whole prompt: attempt, free pages, cached pages, open requests.
  std::tuple<uint64_t, int, int, size_t> found_too_few;

  bool draining = false;
  int64_t drain_deadline_us = kNeverUs;
  uint64_t arrived_before_drain = 0;
  DrainCounts drain_counts;

  std::vector<PlannerAction>* actions = nullptr;  // For the event that is being handled.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_PLANNER_STATE_H_
