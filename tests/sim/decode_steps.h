// A simulated executor of one process of a decode service: runs plans one by one on the pages that
// it is told to (I3), alone or with its stage's other ranks, each on its own heads.
#ifndef TESTS_SIM_DECODE_STEPS_H_
#define TESTS_SIM_DECODE_STEPS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "services/prefill/core/stage.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeSteps {
 public:
  // What a plan's kernel does for one sequence.
  struct Row {
    prefill::RunCompute::Item run;
    const Oracle::Sequence* sequence = nullptr;  // Rank 0 knows.
    std::vector<uint64_t> x;  // What enters, then what leaves the stage's layers; rank 0 knows.
    uint64_t digest = 0;      // Digest of everything up to its end, on this rank.

    bool ahead() const { return run.item.token == prefill::kTokenAhead; }
    int begin() const { return run.item.token_begin; }
    int end() const { return run.item.token_begin + run.item.token_count; }
  };
  struct Ended {
    uint64_t epoch = 0;
    uint64_t number = 0;
    absl::Status status;
    int64_t compute_us = 0;
    std::vector<Row> rows;
  };
  // What a stage makes of a plan, for the next one.
  struct Passed {
    uint64_t attempt_id = 0;
    const Oracle::Sequence* sequence = nullptr;
    std::vector<uint64_t> x;
  };
  struct Activations {
    uint64_t epoch = 0;
    uint64_t number = 0;
    std::vector<Passed> rows;
  };
  struct Hooks {
    // Both the first process's alone.
    std::function<const Oracle::Sequence*(uint64_t attempt_id)> sequence_of;
    std::function<int64_t(const Oracle::Sequence&, int position)> token_at;
    std::function<void(Ended)> ended;
  };
  DecodeSteps(World& world, const Topology& topology, StageGroups& groups, int node,
              std::string self, SimMemory& memory, SimGroup& group, Hooks hooks);

  // The ranks of the epoch, which is 0 where the service is one process.
  void Begin(uint64_t epoch, std::vector<InstanceRef> members);
  void Run(const prefill::RunCompute& compute);
  void PutInput(const Activations& activations) { inputs_[activations.number] = activations; }
  Activations TakeOutput(uint64_t epoch, uint64_t number);
  bool Uses(int page) const;
  bool idle() const { return steps_.empty(); }

 private:
  struct Step {
    prefill::RunCompute compute;
    std::vector<Row> rows;
    bool computed = false;
    int64_t begun_us = 0;
  };

  void BeginNext();
  void RunAlone();
  void RunTogether();
  void StepBegins(const absl::StatusOr<std::vector<uint64_t>>& taken_for);
  const StageGroups::Step* ComputeTogether();
  std::vector<DecodeSteps*> RanksAt(const Step& step);
  bool ComputeRow(size_t row, const std::vector<DecodeSteps*>& ranks, std::vector<uint64_t>& x);
  void StepEnds(const absl::Status& status);
  void EndTogether(absl::Status status);
  void End(const absl::Status& status);
  std::vector<uint64_t> Embedded(const Row& row) const;
  std::vector<Row> RowsOf(const prefill::RunCompute& compute);
  StageGroups::Key KeyOf(uint64_t epoch) const {
    return StageGroups::KeyOf(topology_, node_, epoch);
  }
  int64_t DrawCost(const Step& step);
  bool first() const { return topology_.DecodeRankOf(node_).rank == 0; }
  int stage() const { return topology_.DecodeStageOf(node_); }

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  const int node_;
  const std::string self_;
  SimMemory& memory_;
  SimGroup& group_;
  const Hooks hooks_;
  uint64_t epoch_ = 0;
  std::vector<InstanceRef> members_;         // The epoch's.
  std::map<uint64_t, Activations> inputs_;   // By plan; not yet computed.
  std::map<uint64_t, Activations> outputs_;  // By plan; not yet passed on.
  std::deque<Step> steps_;                   // The first is being computed.
  std::map<uint64_t, int32_t> drawn_;        // By attempt: what was drawn last, by one process.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_STEPS_H_
