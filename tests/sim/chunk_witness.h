// What the planner learns of its stages' costs, and what sizes of plans follow from it, held
// against what the simulation's stages really cost, which no planner is told. Prompts whose cut can
// be judged from outside are those that have the chain for themselves.
#ifndef TESTS_SIM_CHUNK_WITNESS_H_
#define TESTS_SIM_CHUNK_WITNESS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/chunking/fit_account_fixture.h"
#include "common/chunking/stage_cost.h"
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/sizes_account.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class ChunkWitness {
 public:
  ChunkWitness(World& world, const Topology& topology, std::string self);

  // Around every Handle.
  void Before(const prefill::PlannerEvent& event);
  void After(const std::vector<prefill::PlannerAction>& actions,
             const prefill::ChainPlanner& planner);

 private:
  struct Seen {  // What has been seen of a stage.
    int plans = 0;
    bool told = false;  // What its plans cost, and rightly.
    // Values of the first few plans.
    std::multiset<int64_t> shortest;
    std::multiset<int64_t> longest;
    std::multiset<int64_t> longest_prefixes;
    int off = 0;  // Plans of late of which a wrong time is thought, three for each.
  };
  struct Prompt {
    int tokens = 0;
    int planned = 0;
    uint64_t order = 0;  // Arrival order.
    bool first_of_its_length = false;
    std::optional<double> chunk_us;  // Time of its first chunk, if all of it was planned alone.
    int first_tokens = 0;            // That chunk, and what it was thought to take.
    double thought_us = 0;
    double thought_fixed_us = 0;  // Per chunk.
  };
  struct OfRanks {  // What a stage's ranks have said of a plan.
    int ranks = 0;
    int64_t shortest_us = kNeverUs;  // For the last arrival, which waited for no other.
  };
  struct Done {  // What a stage says that it is done with.
    size_t stage = 0;
    PlanWork work;
    int64_t compute_us = 0;
    bool predicted = false;
  };

  void SlowDown();
  void HearKnown(const std::vector<KnownCost>& known);
  void Hear(const prefill::StagePlanDone& said);
  void See(const prefill::Plan& plan, bool known);
  void CheckArithmetic(const prefill::Plan& plan, const PlanWork& work);
  void CheckSizes(const prefill::Plan& plan, int64_t left);
  void AskRules(const prefill::PlanItem& leader, const prefill::PlanItem& other);
  void SeeLone(const prefill::PlanItem& item, Prompt& prompt, bool known);
  std::vector<int> Forecast(int tokens_of_prompt) const;
  void CheckFirst(int tokens_of_chunk, int tokens_of_prompt);
  void CheckForecast(const prefill::PlanItem& item, const Prompt& prompt);
  void CheckLearned(const std::vector<prefill::LearnedCost>& learned);
  bool LearnedEnough(size_t stage) const;
  bool KnowsBehind(int prefix_length) const;
  bool ThinksAsBefore(const Prompt& prompt) const;
  double FirstTokenMicros(int tokens, double chunks) const;
  void Complain(const std::string& what);

  World& world_;
  const Topology& topology_;
  const std::string self_;
  std::vector<StageCost> truth_;    // By stage.
  std::vector<StageCost> learned_;  // By stage; empty if not all are known.
  std::vector<Seen> seen_;          // By stage; outlives epochs, as what is learned does.
  std::vector<FitAccount> fits_;    // By stage; empty before the first epoch.
  SizesAccount sizes_;
  int asked_left_;  // How often rules are still asked what a plan has no use for.
  bool slow_ = false;
  uint64_t arrived_ = 0;
  uint64_t epoch_ = 0;
  std::map<uint64_t, Prompt> prompts_;
  std::set<int> lengths_;                                    // Lengths of all prompts so far.
  std::map<uint64_t, std::pair<PlanWork, bool>> plans_;      // And whether costs were known.
  std::vector<uint64_t> done_plans_;                         // By stage and rank: the last one.
  std::map<std::pair<size_t, uint64_t>, OfRanks> of_ranks_;  // (stage, plan), not done yet.
  std::optional<Done> done_;                                 // For the event being checked.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_CHUNK_WITNESS_H_
