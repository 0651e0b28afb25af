#include "services/router/core/roster.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/kv/head_routes.h"
#include "services/router/core/membership.h"

namespace baton::router {
namespace {

// With more ranks than KV heads some have copies, which they don't hand over.
std::vector<KvWriter> WritersOf(const std::vector<KvWriter>& stages, int kv_heads,
                                int decode_ranks) {
  const auto sources = SourcesOf(kv_heads, stages.front().tensor_rank.size, decode_ranks);
  BATON_CHECK(sources.ok()) << sources.status();  // CheckWellFormed saw to it.
  std::vector<KvWriter> writers;
  for (const KvWriter& stage : stages) {
    if (std::binary_search(sources->begin(), sources->end(), stage.tensor_rank.rank)) {
      writers.push_back(stage);
    }
  }
  return writers;
}

Chain MakeChain(const std::string& chain_id, const std::vector<const Worker*>& stages) {
  Chain chain;
  chain.chain_id = chain_id;
  chain.stage0 = stages.front()->info.instance;
  chain.max_prompt_tokens = stages.front()->info.max_context_tokens;
  chain.capacity_tokens = stages.front()->info.capacity_tokens();
  for (const Worker* stage : stages) {
    chain.stages.push_back({stage->info.instance, stage->info.layers, stage->info.tensor_rank});
    chain.capacity_tokens = std::min(chain.capacity_tokens, stage->info.capacity_tokens());
  }
  chain.draining = std::any_of(stages.begin(), stages.end(),
                               [](const Worker* stage) { return stage->draining; });
  chain.max_prompt_tokens = std::min(chain.max_prompt_tokens, chain.capacity_tokens);
  return chain;
}

Side ChainSide(const std::string& chain_id, const std::vector<const Worker*>& stages) {
  const WorkerInfo& stage0 = stages.front()->info;
  Side side;
  side.pair.chain = MakeChain(chain_id, stages);
  side.pair.page_size = stage0.fingerprint.kv_layout.page_size;
  if (!stage0.decodes) return side;
  const Chain& chain = side.pair.chain;
  side.pair.decode = chain.stage0;
  side.pair.decode_capacity_tokens = chain.capacity_tokens;
  side.pair.max_context_tokens = chain.max_prompt_tokens;
  side.pair.decode_slots = stage0.max_running_requests;
  return side;
}

Side DecodeSide(const std::vector<const Worker*>& places) {
  const WorkerInfo& first = places.front()->info;
  Side side;
  side.kv_heads = first.fingerprint.kv_layout.kv_heads;
  side.decode_ranks = first.tensor_rank.size;
  Pair& pair = side.pair;
  pair.decode = first.instance;
  pair.decode_capacity_tokens = first.capacity_tokens();
  pair.max_context_tokens = first.max_context_tokens;
  pair.decode_slots = first.max_running_requests;
  pair.reserved_tokens = first.reserved_decode_tokens;
  pair.page_size = first.fingerprint.kv_layout.page_size;
  for (const Worker* place : places) {
    const WorkerInfo& info = place->info;
    if (place != places.front()) pair.followers.push_back(info.instance);
    pair.decode_capacity_tokens = std::min(pair.decode_capacity_tokens, info.capacity_tokens());
    pair.max_context_tokens = std::min<int64_t>(pair.max_context_tokens, info.max_context_tokens);
  }
  pair.max_context_tokens = std::min(pair.max_context_tokens, pair.decode_capacity_tokens);
  return side;
}

}  // namespace

Side SideOf(const GridName& name, const std::vector<const Worker*>& places) {
  return name.role == Role::kPrefill ? ChainSide(name.id, places) : DecodeSide(places);
}

Pair Join(const Side& chain, const Side& decode) {
  Pair pair = decode.pair;
  pair.chain = chain.pair.chain;
  pair.writers = WritersOf(pair.chain.stages, decode.kv_heads, decode.decode_ranks);
  return pair;
}

size_t SideTable::Put(const GridName& name, Side side) {
  auto at = slot_of_.find(name);
  if (at == slot_of_.end()) {
    if (free_.empty()) {
      free_.push_back(sides_.size());
      sides_.emplace_back();
    }
    at = slot_of_.emplace(name, free_.back()).first;
    free_.pop_back();
  }
  Slot& slot = sides_[at->second];
  CountOut(slot);
  slot = {std::move(side), /*used=*/true, /*ready=*/true};
  ++ready_count_;
  ++contexts_[slot.side.pair.max_context_tokens];
  changed_.insert(at->second);
  return at->second;
}

void SideTable::Rest(const GridName& name) {
  const auto at = slot_of_.find(name);
  if (at == slot_of_.end() || !sides_[at->second].ready) return;
  CountOut(sides_[at->second]);
  sides_[at->second].ready = false;
  changed_.insert(at->second);
}

void SideTable::Remove(const GridName& name) {
  const auto at = slot_of_.find(name);
  if (at == slot_of_.end()) return;
  CountOut(sides_[at->second]);
  sides_[at->second] = {};
  changed_.insert(at->second);
  free_.push_back(at->second);
  slot_of_.erase(at);
}

void SideTable::CountOut(const Slot& slot) {
  if (!slot.ready) return;
  --ready_count_;
  const auto count = contexts_.find(slot.side.pair.max_context_tokens);
  if (--count->second == 0) contexts_.erase(count);
}

std::vector<size_t> SideTable::ReadySlots() const {
  std::vector<size_t> ready;
  ready.reserve(ready_count_);
  for (const auto& [name, slot] : slot_of_) {
    if (sides_[slot].ready) ready.push_back(slot);
  }
  return ready;
}

std::vector<size_t> SideTable::TakeChanged() {
  std::vector<size_t> changed(changed_.begin(), changed_.end());
  changed_.clear();
  return changed;
}

std::vector<Pair> Roster::Pairs() const {
  std::vector<Pair> pairs;
  VisitPairs([&](size_t chain, size_t decode) {
    const Side& side = *chains.At(chain);
    pairs.push_back(side.pair.colocated() ? side.pair : Join(side, *decodes.At(decode)));
    return true;
  });
  return pairs;
}

bool Roster::HasPair() const {
  bool found = false;
  VisitPairs([&found](size_t, size_t) {
    found = true;
    return false;
  });
  return found;
}

// Without a look at each: thousands of workers make millions.
size_t Roster::CountPairs() const {
  std::unordered_map<uint64_t, const Side*> decode_of;
  for (size_t slot = 0; slot < decodes.slots(); ++slot) {
    const Side* side = decodes.At(slot);
    if (side == nullptr) continue;
    if (!unconnected.empty()) decode_of[side->pair.decode.incarnation] = side;
  }
  std::unordered_map<uint64_t, const Side*> chain_of;
  size_t pairs = 0;
  for (size_t slot = 0; slot < chains.slots(); ++slot) {
    const Side* side = chains.At(slot);
    if (side == nullptr) continue;
    pairs += side->pair.colocated() ? 1 : decodes.ready();
    if (!unconnected.empty()) chain_of[side->pair.chain.stage0.incarnation] = side;
  }
  for (const auto& [stage0, rank0] : unconnected) {
    const auto chain = chain_of.find(stage0);
    const auto decode = decode_of.find(rank0);
    if (chain == chain_of.end() || decode == decode_of.end()) continue;
    pairs -= chain->second->pair.colocated() ? 0 : 1;
  }
  return pairs;
}

}  // namespace baton::router
