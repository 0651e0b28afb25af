#include "tests/sim/decode_steps.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

constexpr int64_t kLatestEndUs = 300'000;
constexpr uint64_t kAtEnd = 0x9e3779b97f4a7c15;

}  // namespace

DecodeSteps::DecodeSteps(World& world, const Topology& topology, StageGroups& groups, int node,
                         std::string self, SimMemory& memory, SimGroup& group, Hooks hooks)
    : world_(world),
      topology_(topology),
      groups_(groups),
      node_(node),
      self_(std::move(self)),
      memory_(memory),
      group_(group),
      hooks_(std::move(hooks)) {}

void DecodeSteps::Begin(uint64_t epoch, std::vector<InstanceRef> members) {
  epoch_ = epoch;
  members_ = std::move(members);
  inputs_.clear();
  outputs_.clear();
  drawn_.clear();
}

std::vector<uint64_t> DecodeSteps::Embedded(const Row& row) const {
  std::vector<uint64_t> x;
  if (row.sequence == nullptr || row.ahead()) return x;
  for (int position = row.begin(); position < row.end(); ++position) {
    const int64_t token =
        row.run.decodes ? row.run.item.token : hooks_.token_at(*row.sequence, position);
    x.push_back(Embed(token, position));
  }
  return x;
}

// From now on the executor may read and write these pages, whatever becomes of the epoch.
void DecodeSteps::Run(const prefill::RunCompute& compute) {
  Step next{compute, RowsOf(compute), false, 0};
  for (const prefill::RunCompute::Item& item : compute.items) memory_.Hold(item.pages);
  if (topology_.decode_ranks > 1) {
    groups_.Submitted(KeyOf(compute.epoch), compute.number, DigestOf(compute));
  }
  steps_.push_back(std::move(next));
  if (steps_.size() == 1) BeginNext();
}

std::vector<DecodeSteps::Row> DecodeSteps::RowsOf(const prefill::RunCompute& compute) {
  std::vector<Row> rows;
  if (stage() == 0) {
    for (const prefill::RunCompute::Item& item : compute.items) {
      const uint64_t attempt_id = item.item.attempt_id;
      Row row{item, hooks_.sequence_of ? hooks_.sequence_of(attempt_id) : nullptr, {}, 0};
      row.x = Embedded(row);
      rows.push_back(std::move(row));
    }
    return rows;
  }
  auto input = inputs_.extract(compute.number);
  const bool whole = !input.empty() && input.mapped().epoch == compute.epoch &&
                     input.mapped().rows.size() == compute.items.size();
  if (!whole) {
    world_.Violate(absl::StrCat(self_, " computes plan ", compute.number,
                                " on the activations of another one"));
  }
  for (size_t i = 0; i < compute.items.size(); ++i) {
    Row row{compute.items[i], nullptr, {}, 0};
    if (whole) {
      Passed& passed = input.mapped().rows[i];
      if (passed.attempt_id != row.run.item.attempt_id) {
        world_.Violate(absl::StrCat(self_, " takes one attempt's activations for another's"));
      }
      row.sequence = passed.sequence;
      row.x = std::move(passed.x);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

DecodeSteps::Activations DecodeSteps::TakeOutput(uint64_t epoch, uint64_t number) {
  auto output = outputs_.extract(number);
  if (!output.empty() && output.mapped().epoch == epoch) return std::move(output.mapped());
  world_.Violate(absl::StrCat(self_, " passes on plan ", number, ", which it has not computed"));
  return {epoch, number, {}};
}

bool DecodeSteps::Uses(int page) const {
  return std::any_of(steps_.begin(), steps_.end(), [page](const Step& step) {
    return std::any_of(step.rows.begin(), step.rows.end(), [page](const Row& row) {
      return std::find(row.run.pages.begin(), row.run.pages.end(), page) != row.run.pages.end();
    });
  });
}

void DecodeSteps::BeginNext() {
  steps_.front().begun_us = world_.now_us();
  topology_.decode_ranks == 1 ? RunAlone() : RunTogether();
}

int64_t DecodeSteps::DrawCost(const Step& step) {
  int64_t tokens = 0;
  for (const Row& row : step.rows) tokens += row.end() - row.begin();
  return topology_.step_us + 50 * tokens + world_.random().Between(0, topology_.step_us / 2);
}

// One row by all ranks that compute it, of which one may be all. False: a promise is broken.
bool DecodeSteps::ComputeRow(size_t row, const std::vector<DecodeSteps*>& ranks,
                             std::vector<uint64_t>& x) {
  const Row& first = ranks.front()->steps_.front().rows[row];
  const int end = first.end();
  x = first.x;
  std::vector<SimMemory::Part> parts;
  for (DecodeSteps* const rank : ranks) {
    const std::vector<int>& pages = rank->steps_.front().rows[row].run.pages;
    if (static_cast<int>(pages.size()) * topology_.page_size < end) {
      world_.Violate(absl::StrCat(rank->self_, " has too few pages for ", end, " tokens"));
      return false;
    }
    parts.push_back({&rank->memory_, pages});
  }
  // Behind the token that ends the text, before the planner knew of it.
  const bool in_vain = first.ahead() && first.sequence->reason == FinishReason::kStop &&
                       end == first.sequence->positions() + 1;
  if (first.sequence == nullptr || (end > first.sequence->positions() && !in_vain)) {
    world_.Violate(
        absl::StrCat(self_, " computes past the end of attempt ", first.run.item.attempt_id));
    return false;
  }
  SimMemory::ForwardTogether(parts, first.begin(), x);
  for (DecodeSteps* const rank : ranks) {
    Row& theirs = rank->steps_.front().rows[row];
    theirs.digest = rank->memory_.Digest(theirs.run.pages, end);
  }
  for (int position = first.begin(); position < end && !in_vain; ++position) {
    const uint64_t out = x[static_cast<size_t>(position - first.begin())];
    if (out == first.sequence->X(position, topology_.DecodeLayers(stage()).end)) continue;
    world_.Violate(absl::StrCat("I3: ", self_, " attends to foreign or missing KV: attempt ",
                                first.run.item.attempt_id, " at position ", position));
    return false;
  }
  return true;
}

void DecodeSteps::RunAlone() {
  Step& step = steps_.front();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    Row& row = step.rows[i];
    const uint64_t attempt_id = row.run.item.attempt_id;
    if (row.ahead()) {
      const auto drawn = drawn_.find(attempt_id);
      if (drawn == drawn_.end()) {
        return world_.Violate(absl::StrCat(self_, " has nothing to feed of attempt ", attempt_id));
      }
      row.x = {Embed(drawn->second, row.begin())};
    }
    std::vector<uint64_t> x;
    if (!ComputeRow(i, {this}, x)) return;
    row.x = std::move(x);
    if (!row.run.item.draws || row.sequence == nullptr) continue;
    const uint64_t prompt_id = row.sequence->inputs.prompt_id;
    drawn_[attempt_id] = DrawToken(row.x.back(), prompt_id, row.run.generated).token;
  }
  step.computed = true;
  world_.After(node_, DrawCost(step), "step done", [this] {
    const bool fails = world_.Strikes(&NetworkFaults::compute_fail);
    End(fails ? absl::ResourceExhaustedError("the executor failed") : absl::OkStatus());
  });
}

// ---- By several ranks ----

void DecodeSteps::RunTogether() {
  group_.BeginStep(DigestOf(steps_.front().compute), [this](const auto& all) { StepBegins(all); });
}

void DecodeSteps::StepBegins(const absl::StatusOr<std::vector<uint64_t>>& taken_for) {
  const Step& step = steps_.front();
  if (!taken_for.ok()) return EndTogether(taken_for.status());
  if (std::count(taken_for->begin(), taken_for->end(), DigestOf(step.compute)) !=
      topology_.decode_ranks) {
    return world_.Violate(absl::StrCat(self_, " sums up step ", step.compute.number,
                                       " with ranks that compute another one"));
  }
  const StageGroups::Step* const together = ComputeTogether();
  if (!world_.violation().empty()) return;
  if (together == nullptr) return StepEnds(absl::OkStatus());  // A rank has left: no sum comes.
  absl::Status status;
  if (world_.Strikes(&NetworkFaults::compute_fail)) {
    status = absl::ResourceExhaustedError("the executor failed");
  }
  world_.After(node_, together->cost_us, "step computed", [this, status] { StepEnds(status); });
}

// The ranks that are at this step now; fewer than all if one has died, or its epoch is over.
std::vector<DecodeSteps*> DecodeSteps::RanksAt(const Step& step) {
  std::vector<DecodeSteps*> ranks;
  for (int rank = 0; rank < topology_.decode_ranks; ++rank) {
    const int member = stage() * topology_.decode_ranks + rank;
    const int node = topology_.DecodeNode(topology_.DecodeOf(node_), member);
    if (!world_.alive(node) ||
        world_.incarnation(node) != members_[static_cast<size_t>(member)].incarnation) {
      continue;
    }
    DecodeSteps& steps = static_cast<DecodeRank*>(world_.process(node))->steps();
    if (steps.steps_.empty() || steps.steps_.front().compute.epoch != step.compute.epoch ||
        steps.steps_.front().compute.number != step.compute.number) {
      continue;
    }
    ranks.push_back(&steps);
  }
  return ranks;
}

// The first rank computes for all: their memory stays in use until the step ends everywhere.
const StageGroups::Step* DecodeSteps::ComputeTogether() {
  const Step& own = steps_.front();
  if (const auto* known = groups_.Find(KeyOf(own.compute.epoch), own.compute.number)) return known;
  const std::vector<DecodeSteps*> ranks = RanksAt(own);
  if (static_cast<int>(ranks.size()) < topology_.decode_ranks) return nullptr;
  StageGroups::Step together;
  together.cost_us = DrawCost(own);
  for (size_t row = 0; row < own.rows.size(); ++row) {
    std::vector<uint64_t> x;
    if (!ComputeRow(row, ranks, x)) return nullptr;
    for (DecodeSteps* const rank : ranks) rank->steps_.front().rows[row].x = x;
  }
  for (DecodeSteps* const rank : ranks) rank->steps_.front().computed = true;
  return groups_.Add(KeyOf(own.compute.epoch), own.compute.number, std::move(together));
}

void DecodeSteps::StepEnds(const absl::Status& status) {
  if (!status.ok()) {
    group_.Fail(status);
    return EndTogether(status);
  }
  const uint64_t taken_for = DigestOf(steps_.front().compute) ^ kAtEnd;
  group_.Gather(taken_for, [this, taken_for](const auto& all) {
    const Step& step = steps_.front();
    const bool same =
        all.ok() && std::count(all->begin(), all->end(), taken_for) == topology_.decode_ranks;
    if (all.ok() && (!step.computed || !same)) {
      return world_.Violate(absl::StrCat(self_, " ends step ", step.compute.number,
                                         ", which its ranks have not computed"));
    }
    EndTogether(all.status());
  });
}

// A group that ends says whose fault it was; only what begins after its end hears no name.
void DecodeSteps::EndTogether(absl::Status status) {
  const bool own = absl::IsResourceExhausted(status);
  if (!status.ok() && !own && !absl::IsAborted(status) && !absl::IsCancelled(status) &&
      !RankOf(status).has_value()) {
    world_.Violate(absl::StrCat(self_, ": sums end and blame nobody: ", status.ToString()));
  }
  if (absl::IsFailedPrecondition(status)) {
    world_.Violate(absl::StrCat(self_, " and its service's ranks disagree: ", status.message()));
  }
  if (!status.ok()) {
    world_.Trace(node_, absl::StrCat("STEP FAILS: ", status.message()));
    group_.Fail(status);  // A step that fails on one rank ends the group for all.
  }
  // What is left to a follower after the sums may take it longer than rank 0.
  int64_t late_us = 0;
  if (!first() && world_.Strikes(&NetworkFaults::step_ends_late)) {
    late_us = world_.random().Between(1000, kLatestEndUs);
  }
  status = group_.Blame(status);
  if (late_us == 0) return End(status);
  world_.After(node_, late_us, "step ends late", [this, status] { End(status); });
}

// The kernel reads and writes until its end: what it has used must still be there.
void DecodeSteps::End(const absl::Status& status) {
  Step step = std::move(steps_.front());
  steps_.pop_front();
  Activations output{step.compute.epoch, step.compute.number, {}};
  for (const Row& row : step.rows) {
    output.rows.push_back({row.run.item.attempt_id, row.sequence, row.x});
    const uint64_t digest = memory_.Digest(row.run.pages, row.end());
    if (step.computed && digest != row.digest) {
      world_.Violate(absl::StrCat("I3: the pages of attempt ", row.run.item.attempt_id, " on ",
                                  self_, " change under a running step"));
    }
    memory_.LetGo(row.run.pages);
  }
  if (step.compute.epoch == epoch_ && stage() + 1 < topology_.decode_stages) {
    outputs_[step.compute.number] = std::move(output);
  }
  if (!steps_.empty()) BeginNext();  // A follower may have the next one already.
  hooks_.ended({step.compute.epoch, step.compute.number, status, world_.now_us() - step.begun_us,
                std::move(step.rows)});
}

}  // namespace baton::sim
