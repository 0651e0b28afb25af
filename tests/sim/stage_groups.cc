#include "tests/sim/stage_groups.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace baton::sim {
namespace {

constexpr size_t kStepsKept = 16;

std::string NameOf(const StageGroups::Key& key) {
  if (key.role == Role::kDecode) {
    return absl::StrCat("stage ", key.stage, " of decode service ", key.chain);
  }
  return absl::StrCat("stage ", key.stage, " of chain-", key.chain);
}

}  // namespace

uint64_t DigestOf(const prefill::RunCompute& compute) {
  uint64_t digest = Mix64(compute.epoch ^ Mix64(compute.number));
  const auto add = [&digest](uint64_t value) { digest = Mix64(digest ^ value); };
  for (const prefill::RunCompute::Item& item : compute.items) {
    add(item.item.attempt_id);
    add(static_cast<uint64_t>(item.item.token_begin));
    add(static_cast<uint64_t>(item.item.token_count));
    add(static_cast<uint64_t>(item.item.token));
    for (const int page : item.pages) add(static_cast<uint64_t>(page));
  }
  return digest;
}

StageGroups::Key StageGroups::KeyOf(const Topology& topology, int node, uint64_t epoch) {
  if (topology.IsDecode(node)) {  // Or of a colocated chain, which is built alike.
    return {Role::kDecode, topology.DecodeOf(node), topology.DecodeStageOf(node), epoch};
  }
  return {Role::kPrefill, topology.ChainOf(node), topology.StageOf(node), epoch};
}

const StageGroups::Group* StageGroups::Of(const Key& key) const {
  const auto found = groups_.find(key);
  return found == groups_.end() ? nullptr : &found->second;
}

void StageGroups::Connected(const Key& key, int rank) {
  if (!groups_[key].connected.insert(rank).second) {
    world_.Violate(absl::StrCat("rank ", rank, " of ", NameOf(key), " connects twice in an epoch"));
  }
  // What is left of another epoch computes nothing any more.
  for (auto& [other, group] : groups_) {
    const Key now{other.role, other.chain, other.stage, key.epoch};
    if (now == key && other.epoch != key.epoch) group.steps.clear();
  }
}

void StageGroups::Formed(const Key& key, int rank) {
  Group& group = groups_[key];
  group.formed.insert(rank);
  if (group.connected.size() == RanksOf(key)) return;
  world_.Violate(absl::StrCat("rank ", rank, " of ", NameOf(key), " is in a group of which ",
                              group.connected.size(), " of ", RanksOf(key),
                              " ranks are connected"));
}

void StageGroups::CheckReady(const Key& key, int rank) const {
  if (RanksOf(key) == 1) return;
  const Group* const group = Of(key);
  if (group != nullptr && group->formed.contains(rank)) return;
  world_.Violate(absl::StrCat("rank ", rank, " of ", NameOf(key), " is ready without its group"));
}

void StageGroups::CheckUp(const Key& key) const {
  if (RanksOf(key) == 1) return;
  const Group* const group = Of(key);
  if (group != nullptr && group->formed.size() == RanksOf(key)) return;
  world_.Violate(absl::StrCat(NameOf(key), " is up, and of its group ",
                              group == nullptr ? 0 : group->formed.size(), " of ", RanksOf(key),
                              " ranks are there"));
}

void StageGroups::Submitted(const Key& key, uint64_t number, uint64_t digest) {
  Group& group = groups_[key];
  const auto [found, first] = group.submitted.emplace(number, digest);
  if (!first && found->second != digest) {
    world_.Violate(
        absl::StrCat("the ranks of ", NameOf(key), " take step ", number, " for others"));
  }
  if (group.submitted.size() > kStepsKept) group.submitted.erase(group.submitted.begin());
}

const StageGroups::Step* StageGroups::Find(const Key& key, uint64_t number) const {
  const Group* const group = Of(key);
  if (group == nullptr) return nullptr;
  const auto found = group->steps.find(number);
  return found == group->steps.end() ? nullptr : &found->second;
}

const StageGroups::Step* StageGroups::Add(const Key& key, uint64_t number, Step step) {
  Group& group = groups_[key];
  const Step* const added = &(group.steps[number] = std::move(step));
  if (group.steps.size() > kStepsKept) group.steps.erase(group.steps.begin());
  return added;
}

}  // namespace baton::sim
