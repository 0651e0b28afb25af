#include "services/router/core/group.h"

#include <algorithm>

#include "services/router/core/fit.h"

namespace baton::router {

bool Group::Fits(const WorkerInfo& worker) const {
  if (workers_.empty()) return true;
  if (workers_.contains(worker.instance.id) || !CheckModels(worker, merged_).ok()) return false;
  const auto grid = members_.find(worker.grid());
  if (grid == members_.end()) return true;
  return std::all_of(grid->second.begin(), grid->second.end(), [&worker](const WorkerInfo* member) {
    return CheckPlace(worker, *member).ok();
  });
}

void Group::Add(const WorkerInfo& worker) {
  if (workers_.empty()) merged_ = worker;
  ModelFingerprint& all = merged_.fingerprint;
  const ModelFingerprint& own = worker.fingerprint;
  all.layer_hashes.insert(own.layer_hashes.begin(), own.layer_hashes.end());
  if (all.embedding_hash == 0) all.embedding_hash = own.embedding_hash;
  if (all.head_hash == 0) all.head_hash = own.head_hash;
  all.protocol_version = std::min(all.protocol_version, own.protocol_version);
  all.oldest_protocol_version = std::max(all.oldest_protocol_version, own.oldest_protocol_version);
  workers_[worker.instance.id] = &worker;
  members_[worker.grid()].push_back(&worker);
  grids_.Hold(worker.grid(), worker.place(), worker.places());
}

void Grids::Hold(const GridName& grid, int place, int places, int64_t changed_us) {
  Places& of = grids_[grid];
  if (of.size == 0) of.size = places;
  if (of.size != places) return;
  of.held.insert(place);
  of.changed_us = std::max(of.changed_us, changed_us);
}

bool Grids::CanPair() const {
  return WholeChangedUs(Role::kPrefill).has_value() && WholeChangedUs(Role::kDecode).has_value();
}

std::optional<int64_t> Grids::WholeChangedUs(Role role) const {
  std::optional<int64_t> latest_us;
  for (const auto& [grid, places] : grids_) {
    const bool whole = static_cast<int>(places.held.size()) == places.size;
    if (grid.role != role || !whole) continue;
    latest_us = std::max(latest_us.value_or(places.changed_us), places.changed_us);
  }
  return latest_us;
}

}  // namespace baton::router
