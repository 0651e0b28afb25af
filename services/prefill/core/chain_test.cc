// A whole chain of cores, wired by hand with random delays: paths keep their order, everything else
// overtakes. The test owns the buffers and pages that shells would and checks every use of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/base/random.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kEpoch = 3;
constexpr int kPageSize = 16;

struct Settings {
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
};

class Chain {
 public:
  Chain(uint64_t seed, const Settings& settings)
      : random_(seed),
        settings_(settings),
        planner_({.page_size = kPageSize,
                  .chunk_tokens = settings.chunk_tokens,
                  .plan_window = settings.window,
                  .stage0_lead = std::max(2, settings.plans_in_flight),
                  .max_open_requests = 5,
                  .max_queued_requests = 2000,
                  .max_context_tokens = settings.pages * kPageSize,
                  .decodes = true}) {
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

 private:
  // What a stage's shell holds: the users of its buffers and pages.
  struct Shell {
    std::map<uint64_t, uint64_t> inputs;     // Buffer -> plan in it.
    std::map<uint64_t, uint64_t> outputs;    // Buffer -> plan in it.
    std::map<uint64_t, int> computed;        // Attempt -> tokens computed, in order.
    std::map<uint64_t, std::set<int>> sent;  // Attempt -> page indices sent.
    std::set<uint64_t> committed;
    std::map<int, int> reading;  // Page -> sends that read it.
    int64_t path_free_us = 0;    // Keeps the order of each path.
    int64_t report_free_us = 0;
    uint64_t last_computed = 0;
    int with_executor = 0;
    int64_t executor_free_us = 0;
  };

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
        const bool decoded = limits_.contains(finish->attempt_id);
        if (finish->status.ok() && !decoded) {
          CheckPromptTokens(finish->attempt_id, finish->outcome);
        }
        continue;
      }
      if (const auto* prompt = std::get_if<PromptDone>(&action)) {
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
    std::vector<StageAction> actions;
    stages_[i]->Handle(event, now_us_, actions);
    ASSERT_TRUE(stages_[i]->CheckInvariants().ok()) << stages_[i]->CheckInvariants();
    for (const StageAction& action : actions) {
      std::visit([&](const auto& a) { Handle(i, a); }, action);
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
      int& computed = shell.computed[item.item.attempt_id];
      EXPECT_EQ(computed, item.item.token_begin);
      computed += item.item.token_count;
      const int first = item.item.token_begin / kPageSize;
      EXPECT_EQ(item.pages.size(), static_cast<size_t>((computed + kPageSize - 1) / kPageSize));
      for (size_t p = static_cast<size_t>(first); p < item.pages.size(); ++p) {
        EXPECT_EQ(shell.reading[item.pages[p]], 0) << "a page that is being sent is overwritten";
      }
      const int fed = item.item.token_begin;
      const bool decodes = item.item.token_begin >= prompts_[item.item.attempt_id];
      EXPECT_EQ(item.generated, std::max(computed - prompts_[item.item.attempt_id], 0));
      if (decodes) {
        EXPECT_EQ(item.item.token, NextToken(item.item.attempt_id, fed - 1));
      }
      if (i + 1 < stages_.size()) continue;
      if (item.item.final || item.item.draws) {
        finished.drawn.emplace_back(
            SampledToken{NextToken(item.item.attempt_id, computed - 1), 0, {}});
      }
      if (!decodes) TellPrompt(item.item, finished);
    }
    // One after another, in the order in which they came.
    const int64_t takes_us = random_.Between(1, 100);
    shell.executor_free_us = std::max(shell.executor_free_us, now_us_) + takes_us;
    At(shell.executor_free_us, [this, i, finished] {
      --shells_[i].with_executor;
      ToStage(i, finished);
    });
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
  const Settings settings_;
  ChainPlanner planner_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Shell> shells_;
  std::map<uint64_t, int> prompts_;
  std::map<uint64_t, int> limits_;                  // max_tokens of those that are decoded.
  std::map<uint64_t, std::vector<int32_t>> texts_;  // Of these, from PromptDone on.
  std::map<uint64_t, absl::Status> finished_;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> agenda_;
  uint64_t sequence_ = 0;
  int64_t now_us_ = 0;
  int most_with_executor_ = 0;
};

Settings Draw(Random& random) {
  return {.stages = static_cast<int>(random.Between(1, 6)),
          .pages = static_cast<int>(random.Between(8, 80)),
          .credits = static_cast<int>(random.Between(1, 4)),
          .plans_in_flight = static_cast<int>(random.Between(1, 4)),
          .window = static_cast<int>(random.Between(1, 8)),
          .chunk_tokens = kPageSize * static_cast<int>(random.Between(1, 12)),
          .requests = static_cast<int>(random.Between(1, 25))};
}

TEST(ChainTest, EveryPromptRunsOnce) {
  for (uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const Settings settings = Draw(random);
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.succeeded(), static_cast<size_t>(settings.requests));
  }
}

TEST(ChainTest, DecodesBesideHandingOver) {
  for (uint64_t seed = 3000; seed < 3150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Settings settings = Draw(random);
    settings.decoded_chance = random.Chance(0.5) ? 1 : 0.5;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.succeeded(), static_cast<size_t>(settings.requests));
  }
}

TEST(ChainTest, AbortsOfDecodedRequestsLeaveNothingBehind) {
  size_t succeeded = 0;
  size_t aborted = 0;
  for (uint64_t seed = 4000; seed < 4150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Settings settings = Draw(random);
    settings.decoded_chance = 0.7;
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    succeeded += chain.succeeded();
    aborted += chain.aborted();
  }
  EXPECT_GT(succeeded, 300u);
  EXPECT_GT(aborted, 300u);
}

TEST(ChainTest, AsManyPlansAsMayAreWithTheExecutor) {
  for (int depth = 1; depth <= 4; ++depth) {
    Settings settings{.stages = 3, .pages = 80, .credits = depth, .plans_in_flight = depth};
    settings.window = 16;
    settings.chunk_tokens = kPageSize;
    settings.requests = 10;
    Chain chain(7, settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.most_with_executor(), depth);
  }
}

TEST(ChainTest, AbortsAndFailedSendsLeaveNothingBehind) {
  size_t succeeded = 0;
  size_t requests = 0;
  for (uint64_t seed = 1000; seed <= 1150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Settings settings = Draw(random);
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    succeeded += chain.succeeded();
    requests += static_cast<size_t>(settings.requests);
  }
  EXPECT_GT(succeeded, requests / 10);
  EXPECT_LT(succeeded, requests * 9 / 10);
}

// Aborts a thousand requests at once: waiting, computed, being sent. A dozen others are answered.
TEST(ChainTest, AStormOfAbortsLeavesNoStageBehind) {
  for (uint64_t seed = 2000; seed < 2008 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Settings settings = Draw(random);
    settings.stages = 8;
    settings.requests = 1020;
    settings.abort_chance = 0.985;
    settings.abort_begin_us = random.Between(500, 5000);
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_GT(chain.succeeded(), 3u);
    EXPECT_GT(chain.aborted(), 900u);
  }
}

}  // namespace
}  // namespace baton::prefill
