// A whole chain of cores, wired by hand with random delays: paths keep their order, everything else
// overtakes. It owns the buffers and pages that shells would, and checks every use of them.
#ifndef SERVICES_PREFILL_CORE_CHAIN_FIXTURE_H_
#define SERVICES_PREFILL_CORE_CHAIN_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

inline constexpr uint64_t kEpoch = 3;
inline constexpr int kPageSize = 16;

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
  double send_error_chance = 0;
  double decoded_chance = 0;  // That a request has no ticket.
  bool caches = false;        // Prompts begin alike, some of them.
  int reserved_decode_tokens = INT_MAX;
};

class Chain {
 public:
  Chain(uint64_t seed, const ChainSettings& settings)
      : random_(seed),
        settings_(settings),
        planner_({.page_size = kPageSize,
                  .chunk_tokens = settings.chunk_tokens,
                  .plan_window = settings.window,
                  .stage0_lead = std::max(2, settings.plans_in_flight),
                  .max_open_requests = 5,
                  .max_queued_requests = 2000,
                  .max_context_tokens = settings.pages * kPageSize,
                  .decodes = true,
                  .reserved_decode_tokens = settings.reserved_decode_tokens,
                  .caches = settings.caches}) {
    for (int i = 0; i < settings.stages; ++i) {
      stages_.push_back(
          std::make_unique<Stage>(StageOptions{.stage = i,
                                               .stages = settings.stages,
                                               .page_size = kPageSize,
                                               .activation_credits = settings.credits,
                                               .plan_limit = settings.window + 1,
                                               .plans_in_flight = settings.plans_in_flight}));
    }
    shells_.resize(stages_.size());
  }

  void Run() {
    for (size_t i = 0; i < stages_.size(); ++i) ToStage(i, EpochBegan{kEpoch});
    ToPlanner(ChainUp{kEpoch, settings_.stages, settings_.pages});
    for (int i = 1; i <= settings_.requests; ++i) AddRequest(static_cast<uint64_t>(i));
    int steps = 0;
    while (!agenda_.empty() && !testing::Test::HasFailure()) {
      ASSERT_LT(++steps, 1'000'000) << "no end";
      const auto next = agenda_.begin();
      now_us_ = next->first.first;
      const auto task = std::move(next->second);
      agenda_.erase(next);
      task();
    }
  }

  void ExpectAtRest() const {
    EXPECT_TRUE(planner_.AtRest());
    EXPECT_EQ(planner_.load().owned_pages, 0);
    for (const auto& stage : stages_) EXPECT_TRUE(stage->AtRest());
    EXPECT_EQ(finished_.size(), static_cast<size_t>(settings_.requests));
    for (const auto& [attempt, status] : finished_) {
      if (!status.ok()) continue;
      const bool decoded = texts_.contains(attempt);
      if (decoded) ExpectText(attempt);
      for (const Shell& shell : shells_) {
        EXPECT_EQ(shell.committed.count(attempt), decoded ? 0u : 1u);
        EXPECT_EQ(shell.sent.contains(attempt), !decoded);
        if (!decoded) {
          EXPECT_EQ(shell.sent.at(attempt).size(), static_cast<size_t>(PagesOf(attempt)));
        }
        const int fed = decoded ? static_cast<int>(texts_.at(attempt).size()) - 1 : 0;
        EXPECT_EQ(shell.computed.at(attempt), prompts_.at(attempt) + fed);
      }
    }
  }
  size_t succeeded() const {
    size_t count = 0;
    for (const auto& [attempt, status] : finished_) count += status.ok() ? 1 : 0;
    return count;
  }
  size_t aborted() const {
    size_t count = 0;
    for (const auto& [attempt, status] : finished_) count += absl::IsCancelled(status) ? 1 : 0;
    return count;
  }
  int most_with_executor() const { return most_with_executor_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  uint64_t evicted_pages() const { return planner_.load().evicted_pages_total; }
  uint64_t retractions() const { return planner_.load().retractions_total; }

 private:
  // What a stage's shell holds: the users of its buffers and pages.
  struct Shell {
    std::map<uint64_t, uint64_t> inputs;       // Buffer -> plan in it.
    std::map<uint64_t, uint64_t> outputs;      // Buffer -> plan in it.
    std::map<uint64_t, int> computed;          // Attempt -> tokens whose KV is there, in order.
    std::map<uint64_t, int> read;              // Attempt -> tokens before its first decode step.
    std::map<int, std::map<int, int32_t>> kv;  // Page -> token of each place in it.
    std::map<uint64_t, std::set<int>> sent;    // Attempt -> page indices sent.
    std::set<uint64_t> committed;
    std::map<int, int> reading;  // Page -> sends that read it.
    int64_t path_free_us = 0;    // Keeps the order of each path.
    int64_t report_free_us = 0;
    uint64_t last_computed = 0;
    int with_executor = 0;
    int64_t executor_free_us = 0;
  };

  // The token at a position of the context. The first ones of a prompt are those of its family.
  int32_t TokenAt(uint64_t attempt, int position) const {
    if (position >= prompts_.at(attempt)) return NextToken(attempt, position - 1);
    const bool shared = position < static_cast<int>(attempt * 13 % 200);
    const uint64_t of = shared ? attempt % 3 : attempt;
    return static_cast<int32_t>(Mix64(of * 100'003 + static_cast<uint64_t>(position)) % 50);
  }

  // The token that follows (attempt, position) in the context; some of them end a text.
  static int32_t NextToken(uint64_t attempt, int position) {
    return static_cast<int32_t>((attempt * 31 + static_cast<uint64_t>(position) * 7) % 50);
  }
  static constexpr int32_t kEos = 3;
  int TokenLimit(uint64_t attempt) const {
    return std::min(limits_.at(attempt), settings_.pages * kPageSize - prompts_.at(attempt));
  }
  void ExpectText(uint64_t attempt) const {
    std::vector<int32_t> expected;
    while (static_cast<int>(expected.size()) < TokenLimit(attempt)) {
      const int position = prompts_.at(attempt) + static_cast<int>(expected.size()) - 1;
      expected.push_back(NextToken(attempt, position));
      if (expected.back() == kEos) break;
    }
    EXPECT_EQ(texts_.at(attempt), expected);
  }

  uint64_t OutputCount() const {
    return static_cast<uint64_t>(OutputBuffers(settings_.plans_in_flight));
  }
  int PagesOf(uint64_t attempt) const { return (prompts_.at(attempt) + kPageSize - 1) / kPageSize; }
  int64_t Delay() { return random_.Between(0, 50); }
  void At(int64_t time_us, std::function<void()> task) {
    agenda_.emplace(std::make_pair(time_us, sequence_++), std::move(task));
  }
  void Later(std::function<void()> task) { At(now_us_ + Delay(), std::move(task)); }
  int64_t InOrder(int64_t& free_us) {
    free_us = std::max(free_us + 1, now_us_ + Delay());
    return free_us;
  }

  void AddRequest(uint64_t attempt) {
    const int tokens =
        static_cast<int>(random_.Between(1, int64_t{settings_.pages} * kPageSize / 2));
    prompts_[attempt] = tokens;
    StartRequested start;
    start.attempt_id = attempt;
    start.prompt_tokens = tokens;
    if (random_.Chance(settings_.decoded_chance)) {
      limits_[attempt] = static_cast<int>(random_.Between(1, 40));
      start.stop = {.max_tokens = limits_[attempt], .eos_ids = {kEos}};
    } else {
      start.ticket.emplace();
      start.ticket->prompt_tokens = tokens;
      start.ticket->prompt_pages = PagesOf(attempt);
    }
    if (settings_.caches) {
      auto ids = std::make_shared<std::vector<int32_t>>();
      for (int i = 0; i < tokens; ++i) ids->push_back(TokenAt(attempt, i));
      start.tokens = std::move(ids);
      start.cache_salt = attempt % 7 == 0 ? "salt" : "";
    }
    start.prompt_logprobs = WantsPrompt(attempt);
    const int64_t arrival_us = random_.Between(0, 3000);
    At(arrival_us, [this, start] { ToPlanner(start); });
    if (!random_.Chance(settings_.abort_chance)) return;
    const bool storm = settings_.abort_begin_us != kNeverUs;
    const int64_t abort_us = storm ? settings_.abort_begin_us + random_.Between(0, 10'000)
                                   : arrival_us + random_.Between(0, 2000);
    At(abort_us, [this, attempt] {
      ToPlanner(AbortRequested{attempt, absl::CancelledError("test")});
    });
  }

  void ToPlanner(const PlannerEvent& event) {
    std::vector<PlannerAction> actions;
    planner_.Handle(event, now_us_, actions);
    ASSERT_TRUE(planner_.CheckInvariants().ok()) << planner_.CheckInvariants();
    for (PlannerAction& action : actions) {
      if (const auto* finish = std::get_if<FinishRequest>(&action)) {
        EXPECT_TRUE(finished_.emplace(finish->attempt_id, finish->status).second) << "I2";
        cached_tokens_ += finish->outcome.cached_tokens;
        const bool decoded = limits_.contains(finish->attempt_id);
        if (finish->status.ok() && !decoded) {
          CheckPromptTokens(finish->attempt_id, finish->outcome);
        }
        continue;
      }
      if (const auto* prompt = std::get_if<PromptDone>(&action)) {
        cached_tokens_ += prompt->outcome.cached_tokens;
        CheckPromptTokens(prompt->attempt_id, prompt->outcome);
        EXPECT_TRUE(texts_.emplace(prompt->attempt_id, std::vector<int32_t>()).second);
        continue;
      }
      if (const auto* token = std::get_if<DeliverToken>(&action)) {
        EXPECT_EQ(finished_.count(token->attempt_id), 0u) << "a token after the end";
        texts_.at(token->attempt_id).push_back(token->token.token);
        continue;
      }
      if (std::holds_alternative<ObservePlan>(action)) continue;
      const Plan plan = std::get<IssuePlan>(std::move(action)).plan;
      EXPECT_LE(plan.TokenCount(), planner_.max_plan_tokens());
      for (size_t i = 0; i < stages_.size(); ++i) {
        At(InOrder(shells_[i].path_free_us), [this, i, plan] { ToStage(i, PlanArrived{plan}); });
      }
    }
  }

  static bool WantsPrompt(uint64_t attempt) { return attempt % 3 == 0; }
  static SampledToken PromptToken(uint64_t attempt, int position) {
    return {position, -static_cast<float>(attempt), {}};
  }
  void CheckPromptTokens(uint64_t attempt, const PrefillOutcome& outcome) {
    std::vector<SampledToken> expected;
    for (int i = 1; WantsPrompt(attempt) && i < prompts_[attempt]; ++i) {
      expected.push_back(PromptToken(attempt, i));
    }
    EXPECT_EQ(outcome.prompt_tokens, expected);
  }

  void ToStage(size_t i, const StageEvent& event) {
    if (const auto* arrived = std::get_if<PlanArrived>(&event)) Open(i, arrived->plan);
    std::vector<StageAction> actions;
    stages_[i]->Handle(event, now_us_, actions);
    ASSERT_TRUE(stages_[i]->CheckInvariants().ok()) << stages_[i]->CheckInvariants();
    for (const StageAction& action : actions) {
      std::visit([&](const auto& a) { Handle(i, a); }, action);
    }
  }

  // What has been told of a text when its request begins again is read again.
  void Open(size_t i, const Plan& plan) {
    for (const PlanOpen& open : plan.opens) {
      if (!open.drawn.empty()) {
        EXPECT_EQ(open.drawn, texts_.at(open.attempt_id));
      }
      shells_[i].read[open.attempt_id] = open.read_tokens();
      shells_[i].computed[open.attempt_id] = open.cached_tokens;
    }
  }

  void Handle(size_t i, const RunCompute& run) {
    Shell& shell = shells_[i];
    EXPECT_GT(run.number, shell.last_computed) << "plans are computed in order, once";
    shell.last_computed = run.number;
    const auto credits = static_cast<uint64_t>(settings_.credits);
    if (i > 0) {
      EXPECT_EQ(shell.inputs[run.number % credits], run.number);
    }
    if (i + 1 < stages_.size()) {
      EXPECT_EQ(shell.outputs.count(run.number % OutputCount()), 0u)
          << "the output buffer is in use";
      shell.outputs[run.number % OutputCount()] = run.number;
    }
    EXPECT_LE(++shell.with_executor, settings_.plans_in_flight);
    most_with_executor_ = std::max(most_with_executor_, shell.with_executor);
    ComputeFinished finished{run.epoch, run.number, absl::OkStatus(), 1, {}, {}};
    for (const RunCompute::Item& item : run.items) {
      int& computed = shell.computed.at(item.item.attempt_id);
      EXPECT_TRUE(settings_.caches || computed > 0 || item.item.token_begin == 0);
      CheckPrefix(shell, item);
      EXPECT_EQ(computed, item.item.token_begin);
      computed += item.item.token_count;
      const int first = item.item.token_begin / kPageSize;
      EXPECT_EQ(item.pages.size(), static_cast<size_t>((computed + kPageSize - 1) / kPageSize));
      for (size_t p = static_cast<size_t>(first); p < item.pages.size(); ++p) {
        EXPECT_EQ(shell.reading[item.pages[p]], 0) << "a page that is being sent is overwritten";
      }
      const int fed = item.item.token_begin;
      const bool decodes = item.item.token_begin >= shell.read.at(item.item.attempt_id);
      EXPECT_EQ(item.decodes, decodes);
      EXPECT_EQ(item.generated, std::max(computed - prompts_[item.item.attempt_id], 0));
      if (decodes) {
        EXPECT_EQ(item.item.token, NextToken(item.item.attempt_id, fed - 1));
      }
      if (i + 1 < stages_.size()) continue;
      if (item.item.final || item.item.draws) {
        finished.drawn.emplace_back(
            SampledToken{NextToken(item.item.attempt_id, computed - 1), 0, {}});
      }
      const bool read_first = shell.read.at(item.item.attempt_id) == prompts_[item.item.attempt_id];
      if (!decodes && read_first) TellPrompt(item.item, finished);
    }
    // One after another, in the order in which they came.
    const int64_t takes_us = random_.Between(1, 100);
    shell.executor_free_us = std::max(shell.executor_free_us, now_us_) + takes_us;
    At(shell.executor_free_us, [this, i, finished] {
      --shells_[i].with_executor;
      ToStage(i, finished);
    });
  }
  // The item reads what is before it, and writes its own.
  void CheckPrefix(Shell& shell, const RunCompute::Item& item) {
    const uint64_t attempt = item.item.attempt_id;
    const int begin = item.item.token_begin;
    for (int i = 0; i < begin + item.item.token_count; ++i) {
      int32_t& token = shell.kv[item.pages[static_cast<size_t>(i / kPageSize)]][i % kPageSize];
      if (i >= begin) token = TokenAt(attempt, i);
      ASSERT_EQ(token, TokenAt(attempt, i)) << "attempt " << attempt << ", position " << i;
    }
  }
  void TellPrompt(const PlanItem& item, ComputeFinished& finished) {
    if (!WantsPrompt(item.attempt_id)) return;
    ComputeFinished::Prompt prompt{{item.attempt_id, item.token_begin + 1, {}}, absl::OkStatus()};
    const int end = item.token_begin + item.token_count + (item.final || item.draws ? 0 : 1);
    for (int i = prompt.told.first; i < end; ++i) {
      prompt.told.tokens.push_back(PromptToken(item.attempt_id, i));
    }
    if (random_.Chance(settings_.send_error_chance)) prompt.status = absl::InternalError("NaN");
    finished.prompts.push_back(std::move(prompt));
  }
  void Handle(size_t i, const SendActivations& send) {
    const auto credits = static_cast<uint64_t>(settings_.credits);
    auto& inputs = shells_[i + 1].inputs;
    EXPECT_EQ(inputs.count(send.number % credits), 0u) << "the input buffer is in use";
    inputs[send.number % credits] = send.number;
    Later([this, i, send] { ToStage(i + 1, ActivationsArrived{send.epoch, send.number}); });
    Later([this, i, send] {
      EXPECT_EQ(shells_[i].outputs[send.number % OutputCount()], send.number);
      shells_[i].outputs.erase(send.number % OutputCount());
      ToStage(i, ActivationsSent{send.epoch, send.number, absl::OkStatus()});
    });
  }
  void Handle(size_t i, const ReturnCredit& credit) {
    shells_[i].inputs.erase(credit.number % static_cast<uint64_t>(settings_.credits));
    Later([this, i, credit] { ToStage(i - 1, CreditReturned{credit.epoch, credit.number}); });
  }
  void Handle(size_t i, const SendKv& send) {
    auto& sent = shells_[i].sent[send.attempt_id];
    for (size_t p = 0; p < send.pages.size(); ++p) {
      EXPECT_TRUE(sent.insert(send.first_page + static_cast<int>(p)).second) << "sent twice";
      ++shells_[i].reading[send.pages[p]];
    }
    const bool fails = random_.Chance(settings_.send_error_chance);
    At(now_us_ + random_.Between(0, 300), [this, i, send, fails] {
      for (const int page : send.pages) --shells_[i].reading[page];
      ToStage(i, KvSent{send.epoch, send.send_id,
                        fails ? absl::UnavailableError("decode") : absl::OkStatus(), 1, 1});
    });
  }
  void Handle(size_t i, const SendCommit& commit) {
    EXPECT_TRUE(shells_[i].committed.insert(commit.attempt_id).second);
    EXPECT_EQ(shells_[i].sent[commit.attempt_id].size(),
              static_cast<size_t>(PagesOf(commit.attempt_id)));
    EXPECT_EQ(commit.first_token.has_value(), i + 1 == stages_.size());
    Later([this, i, commit] {
      ToStage(i, KvSent{commit.epoch, commit.send_id, absl::OkStatus(), 1, 0});
    });
  }
  void Handle(size_t /*i*/, const CancelKv& /*cancel*/) {}  // The sends end as they come.
  void Handle(size_t i, const ReportPlanDone& report) {
    At(InOrder(shells_[i].report_free_us), [this, i, report] {
      ToPlanner(StagePlanDone{static_cast<int>(i), report.epoch, report.done});
    });
  }
  void Handle(size_t i, const ReportRequestClosed& report) {
    At(InOrder(shells_[i].report_free_us), [this, i, report] {
      ToPlanner(StageRequestClosed{static_cast<int>(i), report.epoch, report.closed});
    });
  }
  void Handle(size_t i, const EndEpoch& end) {
    ADD_FAILURE() << "stage " << i << ": " << end.status;
  }

  Random random_;
  const ChainSettings settings_;
  ChainPlanner planner_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Shell> shells_;
  std::map<uint64_t, int> prompts_;
  std::map<uint64_t, int> limits_;                  // max_tokens of those that are decoded.
  std::map<uint64_t, std::vector<int32_t>> texts_;  // Theirs, from PromptDone on.
  std::map<uint64_t, absl::Status> finished_;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> agenda_;
  uint64_t sequence_ = 0;
  int64_t now_us_ = 0;
  int most_with_executor_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_CHAIN_FIXTURE_H_
