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
}

// From now on the executor may read and write these pages, whatever becomes of the epoch.
void DecodeSteps::Run(const decode::RunStep& step) {
  Step next{step.step, epoch_, {}, false};
  for (const decode::RunStep::Sequence& fed : step.sequences) {
    memory_.Hold(fed.pages);
    next.rows.push_back({fed, hooks_.sequence_of ? hooks_.sequence_of(fed.attempt_id) : nullptr,
                         Embed(fed.token, fed.position), 0});
  }
  if (topology_.decode_ranks > 1) groups_.Submitted(KeyOf(epoch_), step.step, DigestOf(next));
  steps_.push_back(std::move(next));
  if (steps_.size() == 1) BeginNext();
}

bool DecodeSteps::Uses(int page) const {
  return std::any_of(steps_.begin(), steps_.end(), [page](const Step& step) {
    return std::any_of(step.rows.begin(), step.rows.end(), [page](const Row& row) {
      return std::find(row.fed.pages.begin(), row.fed.pages.end(), page) != row.fed.pages.end();
    });
  });
}

void DecodeSteps::BeginNext() { topology_.decode_ranks == 1 ? RunAlone() : RunTogether(); }

int64_t DecodeSteps::DrawCost(size_t rows) {
  return topology_.step_us + 50 * static_cast<int64_t>(rows) +
         world_.random().Between(0, topology_.step_us / 2);
}

// One row by all ranks that compute it, of which one may be all. False: a promise is broken.
bool DecodeSteps::ComputeRow(size_t row, const std::vector<DecodeSteps*>& ranks, uint64_t& out) {
  const Row& first = ranks.front()->steps_.front().rows[row];
  const int position = first.fed.position;
  out = first.out;
  std::vector<SimMemory::Part> parts;
  for (DecodeSteps* const rank : ranks) {
    const std::vector<int>& pages = rank->steps_.front().rows[row].fed.pages;
    if (static_cast<int>(pages.size()) * topology_.page_size <= position) {
      world_.Violate(absl::StrCat(rank->self_, " has too few pages for position ", position));
      return false;
    }
    parts.push_back({&rank->memory_, pages});
  }
  SimMemory::ForwardTogether(parts, position, std::span(&out, 1));
  for (DecodeSteps* const rank : ranks) {
    Row& theirs = rank->steps_.front().rows[row];
    theirs.digest = rank->memory_.Digest(theirs.fed.pages, position + 1);
  }
  if (out == first.sequence->X(position, topology_.layers)) return true;
  world_.Violate(absl::StrCat("I3: ", self_, " attends to foreign or missing KV: attempt ",
                              first.fed.attempt_id, " generation ", first.fed.generation,
                              " at position ", position));
  return false;
}

void DecodeSteps::RunAlone() {
  Step& step = steps_.front();
  for (size_t row = 0; row < step.rows.size(); ++row) {
    if (!ComputeRow(row, {this}, step.rows[row].out)) return;
  }
  step.computed = true;
  world_.After(node_, DrawCost(step.rows.size()), "step done", [this] {
    const bool fails = world_.Strikes(&NetworkFaults::compute_fail);
    End(fails ? absl::InternalError("the executor failed") : absl::OkStatus());
  });
}

// ---- By several ranks ----

// What a rank takes the step for. Only rank 0 knows of attempts.
uint64_t DecodeSteps::DigestOf(const Step& step) const {
  uint64_t digest = Mix64(step.epoch ^ Mix64(step.number));
  const auto add = [&digest](uint64_t value) { digest = Mix64(digest ^ value); };
  for (const Row& row : step.rows) {
    add(row.fed.slot);
    add(row.fed.generation);
    add(static_cast<uint64_t>(row.fed.token));
    add(static_cast<uint64_t>(row.fed.position));
    for (const int page : row.fed.pages) add(static_cast<uint64_t>(page));
  }
  return digest;
}

void DecodeSteps::RunTogether() {
  group_.BeginStep(DigestOf(steps_.front()), [this](const auto& all) { StepBegins(all); });
}

void DecodeSteps::StepBegins(const absl::StatusOr<std::vector<uint64_t>>& taken_for) {
  const Step& step = steps_.front();
  if (!taken_for.ok()) return EndTogether(taken_for.status());
  if (std::count(taken_for->begin(), taken_for->end(), DigestOf(step)) != topology_.decode_ranks) {
    return world_.Violate(
        absl::StrCat(self_, " sums up step ", step.number, " with ranks that compute another one"));
  }
  const StageGroups::Step* const together = ComputeTogether();
  if (!world_.violation().empty()) return;
  if (together == nullptr) return StepEnds(absl::OkStatus());  // A rank has left: no sum comes.
  absl::Status status;
  if (world_.Strikes(&NetworkFaults::compute_fail)) {
    status = absl::InternalError("the executor failed");
  }
  world_.After(node_, together->cost_us, "step computed", [this, status] { StepEnds(status); });
}

// The ranks that are at this step now; fewer than all if one has died, or its epoch is over.
std::vector<DecodeSteps*> DecodeSteps::RanksAt(const Step& step) {
  std::vector<DecodeSteps*> ranks;
  for (int rank = 0; rank < topology_.decode_ranks; ++rank) {
    const int node = topology_.DecodeNode(topology_.DecodeOf(node_), rank);
    if (!world_.alive(node) ||
        world_.incarnation(node) != members_[static_cast<size_t>(rank)].incarnation) {
      continue;
    }
    DecodeSteps& steps = static_cast<DecodeRank*>(world_.process(node))->steps();
    if (steps.steps_.empty() || steps.steps_.front().epoch != step.epoch ||
        steps.steps_.front().number != step.number) {
      continue;
    }
    ranks.push_back(&steps);
  }
  return ranks;
}

// The first rank computes for all: their memory stays in use until the step ends everywhere.
const StageGroups::Step* DecodeSteps::ComputeTogether() {
  const Step& own = steps_.front();
  if (const auto* known = groups_.Find(KeyOf(own.epoch), own.number)) return known;
  const std::vector<DecodeSteps*> ranks = RanksAt(own);
  if (static_cast<int>(ranks.size()) < topology_.decode_ranks) return nullptr;
  StageGroups::Step together;
  together.cost_us = DrawCost(own.rows.size());
  for (size_t row = 0; row < own.rows.size(); ++row) {
    uint64_t out = 0;
    if (!ComputeRow(row, ranks, out)) return nullptr;
    for (DecodeSteps* const rank : ranks) rank->steps_.front().rows[row].out = out;
  }
  for (DecodeSteps* const rank : ranks) rank->steps_.front().computed = true;
  return groups_.Add(KeyOf(own.epoch), own.number, std::move(together));
}

void DecodeSteps::StepEnds(const absl::Status& status) {
  if (!status.ok()) {
    group_.Fail(status);
    return EndTogether(status);
  }
  const uint64_t taken_for = DigestOf(steps_.front()) ^ kAtEnd;
  group_.Gather(taken_for, [this, taken_for](const auto& all) {
    const Step& step = steps_.front();
    const bool same =
        all.ok() && std::count(all->begin(), all->end(), taken_for) == topology_.decode_ranks;
    if (all.ok() && (!step.computed || !same)) {
      return world_.Violate(
          absl::StrCat(self_, " ends step ", step.number, ", which its ranks have not computed"));
    }
    EndTogether(all.status());
  });
}

// A group that ends says whose fault it was; only what begins after its end hears no name.
void DecodeSteps::EndTogether(absl::Status status) {
  const bool own = absl::IsInternal(status);
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
  for (const Row& row : step.rows) {
    const uint64_t digest = memory_.Digest(row.fed.pages, row.fed.position + 1);
    if (step.computed && digest != row.digest) {
      world_.Violate(absl::StrCat("I3: the pages of attempt ", row.fed.attempt_id, " generation ",
                                  row.fed.generation, " on ", self_,
                                  " change under a running step"));
    }
    memory_.LetGo(row.fed.pages);
  }
  if (!steps_.empty()) BeginNext();  // A follower may have the next one already.
  hooks_.ended({step.number, status, std::move(step.rows)});
}

}  // namespace baton::sim
