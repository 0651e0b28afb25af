// Colocated chains in virtual time (services/simulator), held against what chain_planner.h promises
// of budgets and guards, by an account that is kept from outside and shares no code with it. Every
// seed draws a chain, its bounds and a workload.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "services/simulator/simulated_cluster.h"

namespace baton::sim {
namespace {

using prefill::PlanItem;
using simulator::ClusterShape;
using simulator::SimulatedCluster;
using simulator::Workload;

constexpr int kPage = 64;
constexpr uint64_t kSeeds = 400;
constexpr double kTolerance = 1.05;  // Costs are learned from whole microseconds.

ClusterShape DrawShape(Random& random) {
  ClusterShape shape;
  TimedProfile& profile = shape.profile;
  const auto stages = static_cast<int>(random.Between(1, 4));
  for (int stage = 0; stage < stages; ++stage) shape.stages.push_back({2 * stage, 2 * stage + 2});
  profile.name = "test";
  profile.layers = 2 * stages;
  profile.hidden_size = 500;
  profile.kv_heads = 1;
  profile.head_dim = 125;
  profile.context_tokens = 1 << 14;
  profile.stage_overhead_us = 300;
  profile.prefill = {.overhead_us = 100.0 * stages,
                     .prefix_us = 0,
                     .token_us = 10.0 * stages,
                     .attention_us = 0.002 * stages,
                     .floor_tokens = 0};
  // As chunks of one token take, so that what is learned of a plan holds for every plan.
  profile.decode = {.overhead_us = 400.0 * stages,
                    .sequence_us = profile.prefill.token_us + profile.prefill.attention_us,
                    .context_us = 2 * profile.prefill.attention_us};
  prefill::PlannerLimits& chain = shape.prefill.planner;
  shape.prefill.pp_size = stages;
  chain.decodes = true;
  chain.chunk_rule = random.Chance(0.5) ? ChunkRule::kFixed : ChunkRule::kOptimal;
  chain.chunk_tokens = kPage * static_cast<int>(random.Between(1, 16));
  chain.max_context_tokens = shape.max_context_tokens = profile.context_tokens;
  chain.reserved_decode_tokens = static_cast<int>(random.Between(1, 64));
  chain.conservativeness = random.Chance(0.5) ? 0 : 1;
  if (random.Chance(0.3)) chain.target_itl_us = random.Between(1, 20'000);
  if (random.Chance(0.6)) chain.decode_max_wait_us = random.Between(1, 20'000);
  if (random.Chance(0.3)) shape.prefill.async_depth = static_cast<int>(random.Between(0, 2));
  chain.feeds_ahead = stages == 1 && random.Chance(0.6);
  if (random.Chance(0.3)) chain.slot_requests = static_cast<int>(random.Between(1, 6));
  if (random.Chance(0.2)) chain.chunk_tokens = -1;
  if (random.Chance(0.3)) chain.input_tokens = kPage * static_cast<int>(random.Between(1, 40));
  chain.max_open_requests = static_cast<int>(random.Between(1, 24));
  if (chain.slot_requests != INT_MAX) {
    const int slots = stages + std::max(shape.prefill.async_depth, 0);
    chain.max_open_requests = std::min(chain.max_open_requests, slots * chain.slot_requests);
  }
  shape.decodes = 0;
  shape.layout = {profile.layers, 1, 125, kPage, 2};
  shape.row_bytes = 1000;
  shape.max_queued_requests = shape.max_requests = 4096;
  shape.request_timeout_us = 3'600'000'000;
  shape.latency_us = random.Between(0, 300);
  for (const LayerRange& stage : shape.stages) {
    shape.known_costs.push_back({profile.OfStage(stage), 0});
  }
  return shape;
}

Workload DrawWorkload(Random& random) {
  Workload workload;
  int64_t at_us = 0;
  for (int i = 0; i < 40; ++i) {
    at_us += random.Between(0, 20'000);
    const auto prompt = static_cast<int>(random.Between(1, random.Chance(0.2) ? 4000 : 300));
    workload.requests.push_back({at_us, prompt, static_cast<int>(random.Between(1, 120))});
  }
  return workload;
}

class GuardsWitness {
 public:
  GuardsWitness(const ClusterShape& shape, bool has_room)
      : limits_(prefill::PlannerLimitsOf(shape.prefill, kPage, shape.row_bytes)),
        has_room_(has_room) {
    for (const LayerRange& stage : shape.stages) costs_.push_back(shape.profile.OfStage(stage));
  }

  void Heard(const prefill::PlannerEvent& event, const std::vector<prefill::PlannerAction>& actions,
             int64_t now_us) {
    now_us_ = now_us;
    if (const auto* start = std::get_if<prefill::StartRequested>(&event)) {
      requests_[start->attempt_id].left = start->prompt_tokens;
    }
    for (const prefill::PlannerAction& action : actions) {
      if (const auto* token = std::get_if<prefill::DeliverToken>(&action)) {
        Request& request = requests_.at(token->attempt_id);
        ++request.drawn;
        if (!std::exchange(request.fed_ahead, false)) request.known_us = now_us;
        request.passed_over = 0;
      } else if (const auto* finish = std::get_if<prefill::FinishRequest>(&action)) {
        requests_.erase(finish->attempt_id);
      } else if (const auto* issue = std::get_if<prefill::IssuePlan>(&action)) {
        See(issue->plan);
      }
    }
  }

  const std::string& violation() const { return violation_; }
  int tight() const { return tight_; }  // Plans that were allowed more than the bounds.
  int ahead() const { return ahead_; }  // Steps that were issued before their tokens were known.

 private:
  struct Request {
    int planned = 0;  // Tokens to read that are in plans,
    int left = 0;     // and in none.
    int drawn = 0;
    bool open = false;
    std::optional<int64_t> known_us;  // A token that no plan feeds yet.
    bool fed_ahead = false;           // A plan feeds the token that comes next.
    int passed_over = 0;              // By so many plans.
  };

  void Complain(const prefill::Plan& plan, const std::string& what) {
    if (!violation_.empty()) return;
    violation_ = absl::StrCat("plan ", plan.number, " ", what, ":");
    for (const PlanItem& item : plan.items) {
      absl::StrAppend(&violation_, " ", item.attempt_id, ":", item.token_begin, "+",
                      item.token_count);
    }
  }

  size_t slots() const { return costs_.size() + static_cast<size_t>(limits_.extra_slots); }

  void See(const prefill::Plan& plan) {
    for (const uint64_t attempt : plan.aborts) {  // Gives way, and is read again.
      const auto found = requests_.find(attempt);
      if (found == requests_.end()) continue;
      found->second.open = false;
      found->second.known_us.reset();
      found->second.fed_ahead = false;
    }
    if (plan.items.empty()) return;
    const bool decodes = std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) {
      return entry.second.open && entry.second.drawn > 0 && entry.second.left == 0;
    });
    for (const prefill::PlanOpen& open : plan.opens) {
      Request& request = requests_.at(open.attempt_id);
      request.planned = open.cached_tokens;
      request.left = open.read_tokens() - open.cached_tokens;
      request.open = true;
    }
    const bool prompts = PromptsWait();
    const int longest = LongestPrefix();
    PlanWork work;
    PlanWork row_work;
    int rows = 0;
    int chunks = 0;
    int tokens = 0;
    for (const PlanItem& item : plan.items) {
      Request& request = requests_.at(item.attempt_id);
      work.Add(item.token_begin, item.token_count);
      if (request.left == 0) {
        if (item.token == prefill::kTokenAhead) {
          if (!limits_.feeds_ahead || std::exchange(request.fed_ahead, true)) {
            Complain(plan, "feeds a token twice, or too early");
          }
          ++ahead_;
        } else if (!request.known_us.has_value()) {
          Complain(plan, "feeds a token that is not known");
        }
        request.known_us.reset();
        row_work.Add(item.token_begin, 1);
        ++rows;
        continue;
      }
      request.planned += item.token_count;
      request.left -= item.token_count;
      tokens += item.token_count;
      ++chunks;
    }
    CheckTokens(plan, rows, chunks, tokens);
    row_work.Add(longest, kPage);
    if (decodes) CheckTime(plan, work, rows, row_work);
    CheckRows(plan);
    if (prompts && chunks == 0) Complain(plan, "leaves prompts out");
  }

  bool PromptsWait() const {
    return std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) {
      return entry.second.open && entry.second.left > 0;
    });
  }

  int LongestPrefix() const {
    int longest = 0;
    for (const auto& [attempt, request] : requests_) {
      if (request.open && request.left > 0) longest = std::max(longest, request.planned);
    }
    return longest;
  }

  void CheckTokens(const prefill::Plan& plan, int rows, int chunks, int tokens) {
    const bool whole = limits_.chunk_tokens >= limits_.max_context_tokens;
    const int budget = std::min(limits_.chunk_tokens, limits_.input_tokens) - rows;
    const bool alone = whole && chunks == 1;
    if (tokens > std::max(budget, kPage) && !alone) Complain(plan, "has too many prompt tokens");
    if (rows > limits_.slot_requests) Complain(plan, "has too many rows");
  }

  // A quarter more than a page takes is always allowed: `least` has the rows, and a page of the
  // dearest prompt.
  void CheckTime(const prefill::Plan& plan, const PlanWork& work, int rows, const PlanWork& least) {
    int64_t most_us = limits_.decode_max_wait_us > 0 ? limits_.decode_max_wait_us : INT64_MAX;
    if (rows > 0 && limits_.target_itl_us > 0) most_us = std::min(most_us, limits_.target_itl_us);
    if (most_us == INT64_MAX) return;
    for (const StageCost& cost : costs_) {
      const double least_us = 1.25 * cost.Micros(least);
      if (rows > 0 && static_cast<double>(most_us) < least_us) ++tight_;
      const double allowed = std::max(static_cast<double>(most_us), least_us);
      if (cost.Micros(work) > kTolerance * allowed) {
        Complain(plan, absl::StrCat("takes ", cost.Micros(work), " us, not ", most_us));
      }
    }
  }

  // Those that it passes over.
  void CheckRows(const prefill::Plan& plan) {
    const bool full = static_cast<int>(std::count_if(
                          plan.items.begin(), plan.items.end(), [&](const PlanItem& item) {
                            return requests_.at(item.attempt_id).left == 0;
                          })) >= limits_.slot_requests;
    for (auto& [attempt, request] : requests_) {
      if (!request.known_us.has_value() || !has_room_) continue;
      ++request.passed_over;
      const int64_t waited_us = now_us_ - *request.known_us;
      const bool overdue =
          limits_.decode_max_wait_us > 0 && waited_us >= limits_.decode_max_wait_us;
      if (request.passed_over >= static_cast<int>(slots()) || (overdue && !full)) {
        Complain(plan, absl::StrCat("passes a known token over that has waited ", waited_us,
                                    " us, for the ", request.passed_over, "th time"));
      }
    }
  }

  const prefill::PlannerLimits limits_;
  const bool has_room_;  // No request waits for pages.
  std::vector<StageCost> costs_;
  std::map<uint64_t, Request> requests_;
  int64_t now_us_ = 0;
  int tight_ = 0;
  int ahead_ = 0;
  std::string violation_;
};

TEST(ColocatedTest, PlansKeepTheirBudgetsAndGuardBothSides) {
  int tight = 0;
  int ahead = 0;
  int64_t retractions = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    ClusterShape shape = DrawShape(random);
    const bool has_room = random.Chance(0.7);
    shape.prefill_pages = has_room ? 4096 : static_cast<int>(random.Between(70, 90));
    const Workload workload = DrawWorkload(random);
    GuardsWitness witness(shape, has_room);
    const SimulatedCluster* running = nullptr;
    SimulatedCluster cluster(shape, workload, {}, [&](const auto& event, const auto& actions) {
      witness.Heard(event, actions, running == nullptr ? 0 : running->now_us());
    });
    running = &cluster;
    const auto record = cluster.Run();
    ASSERT_TRUE(record.ok()) << record.status();
    ASSERT_EQ(witness.violation(), "");
    for (size_t i = 0; i < record->requests.size(); ++i) {
      ASSERT_TRUE(record->requests[i].status.ok()) << record->requests[i].status;
      ASSERT_EQ(record->requests[i].tokens, workload.requests[i].output_tokens);
    }
    ASSERT_EQ(cluster.Settle(), absl::OkStatus());
    tight += witness.tight();
    ahead += witness.ahead();
    retractions += record->chains[0].retractions;
  }
  EXPECT_GT(ahead, 10'000);
  EXPECT_GT(tight, 100) << "the bounds were seldom tight";
  EXPECT_GT(retractions, 20);
}

}  // namespace
}  // namespace baton::sim
