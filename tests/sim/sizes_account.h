// How large each plan of a chain must be: what common/chunking/chunk_policy.h says of its rules,
// plan by plan, in what the planner takes chunks to cost.
#ifndef TESTS_SIM_SIZES_ACCOUNT_H_
#define TESTS_SIM_SIZES_ACCOUNT_H_

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
  // The plan's budget, as far as it is known.
  IntRange Expect(const ChunkPosition& position, const std::vector<StageCost>& costs);
  IntRange Unknowing(const ChunkPosition& position) const;
  IntRange WithinContext(IntRange tokens, int before) const;
  bool Stands(const PromptShape& rest, const std::vector<StageCost>& costs) const;
  void Cut(const PromptShape& rest, const std::vector<StageCost>& costs);
  int PlannedAt(int before) const;

  const Topology& topology_;
  const int most_tokens_;
  // kOptimal: the prompt that was cut last, and into what.
  PromptShape cut_;
  std::vector<int> chunks_;  // Empty: none was.
  double cut_us_ = 0;
  double cut_fixed_us_ = 0;
  // End of the prompt that may have been cut since; rounding decides whether it was. 0:
  // none.
  int perhaps_end_ = 0;
  bool cut_now_ = false;  // By the plan that is looked at.
  int checks_left_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIZES_ACCOUNT_H_
