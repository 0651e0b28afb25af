// How large each plan of a chain must be: what common/chunking/chunk_policy.h says of its rules,
// plan by plan, in what the planner takes chunks to cost.
#ifndef TESTS_SIM_SIZES_ACCOUNT_H_
#define TESTS_SIM_SIZES_ACCOUNT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/chunking/chunk_policy.h"
#include "common/chunking/stage_cost.h"
#include "tests/sim/chunk_arithmetic.h"
#include "tests/sim/topology.h"

namespace baton::sim {

class SizesAccount {
 public:
  explicit SizesAccount(const Topology& topology);

  // A plan begins with a prompt at `position` and holds `tokens` of it, of others too unless it is
  // `alone` there. Costs as SetCosts was told. "": all is right.
  std::string See(const ChunkPosition& position, const std::vector<StageCost>& costs, int tokens,
                  bool alone);

 private:
  static constexpr double kEndless = std::numeric_limits<double>::infinity();

  // Of the plan's budget, as far as can be said.
  IntRange Expect(const ChunkPosition& position, const std::vector<StageCost>& costs);
  IntRange Unknowing(const ChunkPosition& position) const;
  bool Stands(const PromptShape& rest, const std::vector<StageCost>& costs) const;
  void Observe(const PromptShape& rest, const std::vector<StageCost>& costs, int tokens);

  const Topology& topology_;
  const int most_tokens_;
  // kOptimal: the prompt that was cut last.
  int cut_from_ = 0;
  int cut_end_ = 0;
  int cut_tokens_ = 0;  // Of its first chunk; 0: nobody has seen it.
  double cut_us_ = 0;
  double cut_fixed_us_ = 0;
  bool cut_now_ = false;  // By the plan that is looked at.
  bool alone_ = false;    // That plan is for a prompt that has the chain for itself.
  // Between which its chunks' time lies.
  double limit_least_us_ = 0;
  double limit_most_us_ = kEndless;
  int checks_left_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIZES_ACCOUNT_H_
