#include "services/router/core/group.h"

#include <algorithm>

#include "services/router/core/fit.h"

namespace baton::router {

bool Group::Fits(const WorkerInfo& worker) const {
  if (workers_.empty()) return true;
  if (workers_.contains(worker.instance.id) || !CheckFit(worker, merged_).ok()) return false;
  const auto chain = stages_.find(worker.chain_id);
  if (worker.role != Role::kPrefill || chain == stages_.end()) return true;
  return std::all_of(
      chain->second.begin(), chain->second.end(),
      [&worker](const WorkerInfo* stage) { return CheckPlace(worker, *stage).ok(); });
}

void Group::Add(const WorkerInfo& worker) {
  if (workers_.empty()) {
    merged_ = worker;
    merged_.role = Role::kDecode;  // It takes no place in a chain.
  }
  ModelFingerprint& all = merged_.fingerprint;
  const ModelFingerprint& own = worker.fingerprint;
  all.layer_hashes.insert(own.layer_hashes.begin(), own.layer_hashes.end());
  if (all.embedding_hash == 0) all.embedding_hash = own.embedding_hash;
  if (all.head_hash == 0) all.head_hash = own.head_hash;
  all.protocol_version = std::min(all.protocol_version, own.protocol_version);
  all.oldest_protocol_version = std::max(all.oldest_protocol_version, own.oldest_protocol_version);
  workers_[worker.instance.id] = &worker;
  if (worker.role == Role::kDecode) return ExpectDecode();
  stages_[worker.chain_id].push_back(&worker);
  ExpectStage(worker.chain_id, worker.place(), worker.places());
}

void Group::ExpectStage(const std::string& chain_id, int place, int places) {
  Places& chain = chains_[chain_id];
  if (chain.size == 0) chain.size = places;
  if (chain.size == places) chain.held.insert(place);
}

bool Group::CanPair() const {
  return decode_ && std::any_of(chains_.begin(), chains_.end(), [](const auto& chain) {
           return static_cast<int>(chain.second.held.size()) == chain.second.size;
         });
}

}  // namespace baton::router
