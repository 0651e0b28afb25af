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
  grids_.Hold(worker.grid_place());
}

void Grids::Hold(const GridPlace& place, int64_t changed_us) {
  Places& of = grids_[place.grid];
  if (of.held.empty()) of.shape = place;
  if (of.shape.places != place.places || of.shape.decodes != place.decodes) return;
  of.held.insert(place.place);
  of.changed_us = std::max(of.changed_us, changed_us);
}

std::optional<int64_t> Grids::PairChangedUs() const {
  // An absent one is before every time.
  std::optional<int64_t> chain_us;
  std::optional<int64_t> decode_us;
  std::optional<int64_t> colocated_us;
  for (const auto& [grid, places] : grids_) {
    if (static_cast<int>(places.held.size()) != places.shape.places) continue;
    std::optional<int64_t>& whole_us = grid.role == Role::kDecode ? decode_us
                                       : places.shape.decodes     ? colocated_us
                                                                  : chain_us;
    whole_us = std::max<std::optional<int64_t>>(whole_us, places.changed_us);
  }
  if (!chain_us.has_value() || !decode_us.has_value()) return colocated_us;
  return std::max({chain_us, decode_us, colocated_us});
}

}  // namespace baton::router
