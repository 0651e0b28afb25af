// A step that the ranks of a stage compute together: each waits for the others at its begin and at
// its end, and what comes of it is the sum of what each makes of its own slots. Plays
// common/engine/rank_group and the executor above it.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

constexpr uint64_t kAtEnd = 0x9e3779b97f4a7c15;

}  // namespace

void PrefillProcess::BeginTogether() {
  const prefill::RunCompute& compute = submitted_.front().compute;
  group_.BeginStep(DigestOf(compute), [this](const auto& all) { StepBegins(all); });
}

void PrefillProcess::StepBegins(const absl::StatusOr<std::vector<uint64_t>>& taken_for) {
  const prefill::RunCompute& compute = submitted_.front().compute;
  prefill::ComputeFinished done;
  done.epoch = compute.epoch;
  done.number = compute.number;
  if (!taken_for.ok()) return EndTogether(std::move(done), taken_for.status());
  if (std::count(taken_for->begin(), taken_for->end(), DigestOf(compute)) != topology_.ranks) {
    return world_.Violate(absl::StrCat(self_.id, " sums up plan ", compute.number,
                                       " with ranks that compute something else"));
  }
  const StageGroups::Step* const step = ComputeTogether(compute);
  if (!world_.violation().empty()) return;
  if (step == nullptr) return StepEnds(std::move(done));  // A rank has left: no sum comes.
  auto output = std::make_shared<SimActivations>();
  output->epoch = compute.epoch;
  output->number = compute.number;
  if (!TakeInput(compute, *output)) return;
  for (size_t i = 0; i < compute.items.size(); ++i) {
    output->rows[i].x = step->x[i];
    output->rows[i].layers_done = layers_.end;
  }
  done = ResultOf(compute, *output);
  if (topology_.slices && !last()) {
    for (SimActivations::Row& row : output->rows) {
      for (uint64_t& x : row.x) x &= SliceBits(rank_);
    }
  }
  outputs_[compute.number % outputs_.size()] = std::move(output);
  done.status = DrawFailure();
  const int64_t cost_us = step->cost_us + DrawStall();
  world_.After(node_, cost_us, "computed", [this, done] { StepEnds(done); });
}

// The ranks that are at this step now; fewer than all if one has died, or its epoch is over.
std::vector<PrefillProcess*> PrefillProcess::RanksAt(const prefill::RunCompute& compute) {
  std::vector<PrefillProcess*> ranks;
  for (int rank = 0; rank < topology_.ranks; ++rank) {
    const int member = stage_index_ * topology_.ranks + rank;
    const int node = NodeOfMember(member);
    if (!world_.alive(node) ||
        world_.incarnation(node) != members_[static_cast<size_t>(member)].incarnation) {
      continue;
    }
    auto* const process = static_cast<PrefillProcess*>(world_.process(node));
    if (process->epoch_ != compute.epoch || process->submitted_.empty()) continue;
    const prefill::RunCompute& theirs = process->submitted_.front().compute;
    if (theirs.epoch == compute.epoch && theirs.number == compute.number) ranks.push_back(process);
  }
  return ranks;
}

// The first rank computes for all: their memory stays in use until the step ends everywhere.
const StageGroups::Step* PrefillProcess::ComputeTogether(const prefill::RunCompute& compute) {
  const StageGroups::Key key = KeyOf(compute.epoch);
  if (const auto* known = groups_.Find(key, compute.number)) return known;
  const std::vector<PrefillProcess*> ranks = RanksAt(compute);
  if (static_cast<int>(ranks.size()) < topology_.ranks) return nullptr;
  SimActivations whole;
  for (PrefillProcess* const rank : ranks) {
    SimActivations part;
    if (!rank->TakeInput(rank->submitted_.front().compute, part)) return nullptr;
    if (rank == ranks[0]) {
      whole.rows = std::move(part.rows);
      continue;
    }
    for (size_t i = 0; i < whole.rows.size(); ++i) {
      SimActivations::Row& row = whole.rows[i];
      if (row.attempt_id != part.rows[i].attempt_id || row.x.size() != part.rows[i].x.size()) {
        ComplainOf(compute.items[i].item, "has slices of different chunks");
        return nullptr;
      }
      // Slices have no bit in common; whole activations all.
      for (size_t t = 0; t < row.x.size(); ++t) row.x[t] |= part.rows[i].x[t];
    }
  }
  StageGroups::Step step;
  step.cost_us = DrawCost(compute);
  for (size_t i = 0; i < compute.items.size(); ++i) {
    SimActivations::Row& row = whole.rows[i];
    std::vector<SimMemory::Part> parts;
    for (PrefillProcess* const rank : ranks) {
      const prefill::RunCompute::Item& item = rank->submitted_.front().compute.items[i];
      if (!rank->CheckItem(item, row)) return nullptr;
      parts.push_back({&rank->memory_, item.pages});
    }
    SimMemory::ForwardTogether(parts, row.token_begin, row.x);
    for (PrefillProcess* const rank : ranks) {
      Submitted& theirs = rank->submitted_.front();
      const int end = row.token_begin + row.token_count;
      theirs.digests.push_back(rank->memory_.Digest(theirs.compute.items[i].pages, end));
    }
    if (!RightAfter(layers_.end, row)) {
      ComplainOf(compute.items[i].item, "attends to foreign or missing KV");
      return nullptr;
    }
    step.x.push_back(row.x);
  }
  return groups_.Add(key, compute.number, std::move(step));
}

void PrefillProcess::StepEnds(prefill::ComputeFinished done) {
  if (!done.status.ok()) {
    group_.Fail(done.status);
    absl::Status status = std::exchange(done.status, absl::OkStatus());
    return EndTogether(std::move(done), status);
  }
  const uint64_t taken_for = DigestOf(submitted_.front().compute) ^ kAtEnd;
  group_.Gather(taken_for, [this, done, taken_for](const auto& all) {
    if (all.ok() && (submitted_.front().digests.empty() ||
                     std::count(all->begin(), all->end(), taken_for) != topology_.ranks)) {
      return world_.Violate(absl::StrCat(self_.id, " ends plan ", done.number,
                                         ", which its ranks have not computed"));
    }
    EndTogether(done, all.status());
  });
}

// A group that ends says whose fault it was; only what begins after its end hears no name.
void PrefillProcess::EndTogether(prefill::ComputeFinished done, const absl::Status& status) {
  const bool own = absl::IsResourceExhausted(status);
  if (!status.ok() && !own && !absl::IsAborted(status) && !RankOf(status).has_value()) {
    world_.Violate(absl::StrCat(self_.id, ": sums end and blame nobody: ", status.ToString()));
  }
  if (absl::IsFailedPrecondition(status)) {
    world_.Violate(absl::StrCat(self_.id, " and its stage's ranks disagree: ", status.message()));
  }
  if (!status.ok()) {
    world_.Trace(node_, absl::StrCat("STEP FAILS: ", status.message()));
    done.drawn.clear();
    done.prompts.clear();
    // A step that fails on one rank ends the group for all.
    group_.Fail(status);
  }
  done.status = group_.Blame(status);
  done.compute_us = world_.now_us() - submitted_.front().begun_us;
  EndCompute(done);
}

}  // namespace baton::sim
