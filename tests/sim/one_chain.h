// One chain that decodes, in virtual time: the real planner and stages, with plans, activations and
// reports that take random times. It owns the buffers and pages that the processes would, and
// checks every use of them. Stages die and come back; the requests that this ends go on as the
// router has them go on: with what was told of their texts behind their prompts.
//
// It is what cluster.h lacks: chains that decode what they read, prefix caches and their salts, and
// slots.
#ifndef TESTS_SIM_ONE_CHAIN_H_
#define TESTS_SIM_ONE_CHAIN_H_

#include <climits>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"

namespace baton::sim {

inline constexpr int kChainPageSize = 16;

struct ChainSettings {
  int stages = 1;
  int pages = 0;
  int credits = 1;
  int plans_in_flight = 1;
  int window = 1;
  int chunk_tokens = 0;
  int requests = 0;
  double abort_chance = 0;
  int64_t abort_begin_us = kNeverUs;  // All that are aborted are within 10 ms from then.
  double send_error_chance = 0;       // A hand-off or a prompt's tokens fail: the request ends.
  double decoded_chance = 0;          // That a request has no ticket.
  bool caches = false;                // Prompts begin alike, some of them; one in seven has a salt.
  int reserved_decode_tokens = INT_MAX;
  int extra_slots = 0;
  int slot_requests = INT_MAX;
  bool feeds_ahead = false;
  int deaths = 0;   // Stages that die.
  int flushes = 0;  // Calls of FlushCache.
};

// How many stages, pages, buffers and requests; nothing goes wrong.
ChainSettings DrawChain(Random& random);
// All that may be at once, by the seed.
ChainSettings DrawStormyChain(Random& random);

class OneChain {
 public:
  OneChain(uint64_t seed, const ChainSettings& settings);

  // To the end of all requests, or to the first broken promise.
  void Run();

  const std::string& violation() const { return violation_; }  // Empty: every promise was kept.
  int succeeded() const;
  int aborted() const;
  int most_with_executor() const { return most_with_executor_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int steps_ahead() const { return steps_ahead_; }  // Issued before their tokens were known.
  uint64_t evicted_pages() const { return evicted_pages_ + planner_->load().evicted_pages_total; }
  uint64_t retractions() const { return retractions_ + planner_->load().retractions_total; }
  int resumes() const { return resumes_; }  // After a death, of texts that had begun.

 private:
  // A request is one or more attempts: kTry apart, for it begins again when a stage dies.
  static constexpr uint64_t kTry = 1'000'000;
  static uint64_t RequestOf(uint64_t attempt) { return attempt % kTry; }

  struct Request {
    uint64_t attempt = 0;  // The one that runs, or the next one.
    int prompt_tokens = 0;
    int token_limit = 0;  // 0: it has a ticket.
    std::vector<int32_t> text;
    bool prompt_told = false;
    std::optional<absl::Status> end;

    bool decoded() const { return token_limit > 0; }
  };
  struct Attempt {
    int prompt_tokens = 0;  // With the text that was told before.
    int told_before = 0;    // Tokens of that.
    bool wants_prompt = false;
    bool prompt_done = false;
  };
  // What a stage's process holds: the users of its buffers and pages.
  struct Process {
    std::map<uint64_t, uint64_t> inputs;       // Buffer -> plan in it.
    std::map<uint64_t, uint64_t> outputs;      // Buffer -> plan in it.
    std::map<uint64_t, int> computed;          // Attempt -> tokens whose KV is there, in order.
    std::map<uint64_t, int> read;              // Attempt -> tokens before its first decode step.
    std::map<uint64_t, int32_t> last_drawn;    // By attempt.
    std::map<int, std::map<int, int64_t>> kv;  // Page -> what each place in it holds.
    std::map<uint64_t, std::set<int>> sent;    // Attempt -> page indices sent.
    std::set<uint64_t> committed;
    std::map<int, int> reading;  // Page -> sends that read it.
    int64_t path_free_us = 0;    // Keeps the order of each path.
    int64_t report_free_us = 0;
    uint64_t last_computed = 0;
    int with_executor = 0;
    int64_t executor_free_us = 0;
    int life = 0;
  };

  bool FeedsAhead() const {
    return settings_.feeds_ahead && settings_.stages == 1 && settings_.extra_slots == 0;
  }
  prefill::PlannerLimits Limits() const;
  std::unique_ptr<prefill::Stage> NewStage(int stage) const;

  // ---- The toy model ----
  int32_t TokenAt(uint64_t request, int position) const;
  static int32_t NextToken(uint64_t request, int position);
  std::string SaltOf(uint64_t request) const;
  int64_t KvAt(uint64_t request, int position) const;
  std::vector<int32_t> RightText(uint64_t request) const;

  // ---- Time ----
  int64_t Delay() { return random_.Between(0, 50); }
  void At(int64_t time_us, std::function<void()> task);
  // Lost if the process dies before.
  void AtProcess(size_t stage, int64_t time_us, std::function<void()> task);
  void ToStageLater(size_t stage, int64_t time_us, prefill::StageEvent event);
  int64_t InOrder(int64_t& free_us);

  // ---- Clients ----
  void AddRequest(uint64_t request);
  void Begin(uint64_t request);
  void BeginAgain(uint64_t request);
  void Abort(uint64_t request);
  void Ends(const prefill::FinishRequest& finish);
  void CheckAnswer(uint64_t request, uint64_t attempt);

  // ---- Stage 0 ----
  void ToPlanner(const prefill::PlannerEvent& event);
  void Perform(const prefill::IssuePlan& issue);
  void Perform(const prefill::FinishRequest& finish) { Ends(finish); }
  void Perform(const prefill::PromptDone& prompt);
  void Perform(const prefill::DeliverToken& token);
  void Perform(const prefill::ObservePlan&) {}
  void Perform(const prefill::FailChain& fail);
  void Perform(const prefill::GrantKv&) { Complain("a chain grants KV"); }
  void Perform(const prefill::RevokeKv&) { Complain("a chain revokes KV"); }
  void Perform(const prefill::HandOutTicket&) { Complain("a chain hands out a ticket"); }
  void CheckPromptTokens(uint64_t attempt, const prefill::PrefillOutcome& outcome);
  void CheckSlots(const prefill::Plan& plan);

  // ---- Deaths ----
  void Die();
  void BeginEpochWhenQuiet();

  // ---- Stages (one_chain_stages.cc) ----
  void ToStage(size_t i, const prefill::StageEvent& event);
  void Open(size_t i, const prefill::Plan& plan);
  void Perform(size_t i, const prefill::RunCompute& run);
  void Compute(size_t i, const prefill::RunCompute::Item& item, prefill::ComputeFinished& finished);
  void ReadAndWrite(Process& process, const prefill::RunCompute::Item& item);
  void TellPrompt(const prefill::PlanItem& item, prefill::ComputeFinished& finished);
  void Perform(size_t i, const prefill::SendActivations& send);
  void Perform(size_t i, const prefill::ReturnCredit& credit);
  void Perform(size_t i, const prefill::SendKv& send);
  void Perform(size_t i, const prefill::SendCommit& commit);
  void Perform(size_t /*i*/, const prefill::CancelKv& /*cancel*/) {}  // Sends end as they come.
  void Perform(size_t i, const prefill::ReportPlanDone& report);
  void Perform(size_t i, const prefill::ReportRequestClosed& report);
  void Perform(size_t i, const prefill::EndEpoch& end);
  static SampledToken PromptToken(uint64_t request, int position);
  uint64_t OutputCount() const;

  void Complain(const std::string& what);
  // Complains unless it holds.
  bool Holds(bool holds, const std::string& what);
  void CheckRest();

  Random random_;
  const ChainSettings settings_;
  std::unique_ptr<prefill::ChainPlanner> planner_;
  std::vector<std::unique_ptr<prefill::Stage>> stages_;
  std::vector<Process> processes_;
  std::map<uint64_t, Request> requests_;
  std::map<uint64_t, Attempt> attempts_;
  std::set<uint64_t> drawing_;     // Plans that draw and that the planner knows no end of.
  std::map<uint64_t, int> reads_;  // By attempt: tokens before its first decode step.
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> agenda_;
  uint64_t sequence_ = 0;
  int64_t now_us_ = 0;
  uint64_t epoch_ = 3;
  bool up_ = false;
  std::string violation_;
  int most_with_executor_ = 0;
  int64_t cached_tokens_ = 0;
  uint64_t evicted_pages_ = 0;  // By planners that are dead.
  uint64_t retractions_ = 0;
  int resumes_ = 0;
  int steps_ahead_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_ONE_CHAIN_H_
