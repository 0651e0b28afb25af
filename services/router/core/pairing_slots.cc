// What Pairing keeps for each chain and decode service of the roster: its account, its place among
// the others, and what it should have cached.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "services/router/core/pairing.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

constexpr int kMissesOfNone = 3;  // A chain that misses so often in a row seems to cache nothing.
constexpr double kLengthsKept = 0.999;  // With each prompt.

uint64_t LifeOf(const Chain& chain) {
  uint64_t life = 1;
  for (const KvWriter& stage : chain.stages) {
    life = Mix64(life ^ stage.instance.incarnation) ^ std::hash<std::string>()(stage.instance.id);
  }
  return life;
}

size_t LengthBucket(int prompt_tokens) {
  return static_cast<size_t>(4 * std::log2(std::max(1, prompt_tokens)));
}

}  // namespace

void Pairing::Follow(Roster& roster) {
  const std::vector<size_t> chains = roster.chains.TakeChanged();
  if (chains_.size() < roster.chains.slots()) chains_.resize(roster.chains.slots());
  for (const size_t slot : chains) FollowChain(roster.chains, slot);
  if (!chains.empty() && policy_ == Policy::kLengthBuckets) PlaceChains(roster.chains);
  if (decodes_.size() < roster.decodes.slots()) decodes_.resize(roster.decodes.slots());
  for (const size_t slot : roster.decodes.TakeChanged()) FollowDecode(roster.decodes, slot);
}

void Pairing::FollowChain(const SideTable& chains, size_t slot) {
  Slot& kept = chains_[slot];
  if (kept.account != nullptr) {
    chain_loads_.Remove(slot);
    ring_.Remove(kept.owner);
    const auto account = workers_.find(kept.instance);
    if (account != workers_.end()) account->second.chain_slot.reset();
    kept.account = nullptr;
  }
  if (chains.Gone(slot)) {
    index_.Drop(slot);
    kept = {};
    return;
  }
  const Side* side = chains.At(slot);
  if (side == nullptr) return;
  const Chain& chain = side->pair.chain;
  const uint64_t life = LifeOf(chain);
  if (kept.life != life) {
    index_.Drop(slot);
    kept.life = life;
    kept.misses = 0;
  }
  kept.instance = chain.stage0;
  kept.limits = LimitsOf(side->pair);
  kept.owner = RoutingKey(chain.chain_id);
  Assigned& account = workers_[chain.stage0];
  account.chain_slot = slot;
  account.colocated = side->pair.colocated();
  kept.account = &account;
  ring_.Add(kept.owner, slot);
  Weigh(account);
}

void Pairing::FollowDecode(const SideTable& decodes, size_t slot) {
  Slot& kept = decodes_[slot];
  if (kept.account != nullptr) {
    decode_loads_.Remove(slot);
    const auto account = workers_.find(kept.instance);
    if (account != workers_.end()) account->second.decode_slot.reset();
  }
  kept = {};
  const Side* side = decodes.At(slot);
  if (side == nullptr) return;
  kept.instance = side->pair.decode;
  kept.limits = LimitsOf(side->pair);
  kept.limits.colocated = false;
  Assigned& account = workers_[kept.instance];
  account.decode_slot = slot;
  kept.account = &account;
  Weigh(account);
}

void Pairing::PlaceChains(const SideTable& chains) {
  by_name_.clear();
  for (size_t slot = 0; slot < chains.slots(); ++slot) {
    if (chains.At(slot) != nullptr) by_name_.push_back(slot);
  }
  std::sort(by_name_.begin(), by_name_.end(), [&chains](size_t a, size_t b) {
    return chains.At(a)->pair.chain.chain_id < chains.At(b)->pair.chain.chain_id;
  });
  for (size_t i = 0; i < by_name_.size(); ++i) {
    chains_[by_name_[i]].place =
        (static_cast<double>(i) + 0.5) / static_cast<double>(by_name_.size());
  }
}

Predicted Pairing::Note(const Pair& pair, const Ask& ask) {
  if (policy_ == Policy::kLengthBuckets) {
    for (double& tokens : lengths_) tokens *= kLengthsKept;
    lengths_[LengthBucket(ask.prompt_tokens)] += ask.prompt_tokens;
  }
  Predicted predicted;
  const auto account = workers_.find(pair.chain.stage0);
  if (account == workers_.end() || !account->second.chain_slot.has_value()) return predicted;
  const size_t slot = *account->second.chain_slot;
  if (chains_[slot].misses >= kMissesOfNone) return predicted;
  const size_t held = index_.Held(slot, ask.prefix);
  if (held > 0) {
    const int tokens = std::min(PrefixTokens(held), ask.prompt_tokens - 1);
    predicted.cached_tokens = tokens / pair.page_size * pair.page_size;
    predicted.noted = index_.NotedAt(slot, ask.prefix[held - 1]);
  }
  index_.Note(slot, ask.prefix, pair.chain.capacity_tokens);
  return predicted;
}

bool Pairing::NoteTaken(Roster& roster, const InstanceRef& stage0,
                        std::span<const std::vector<uint64_t>> prompts) {
  Follow(roster);
  const auto account = workers_.find(stage0);
  if (account == workers_.end() || !account->second.chain_slot.has_value()) return false;
  const Slot& slot = chains_[*account->second.chain_slot];
  if (slot.misses >= kMissesOfNone) return true;  // It caches nothing.
  for (const std::vector<uint64_t>& keys : prompts) {
    index_.Note(*account->second.chain_slot, keys, slot.limits.chain_capacity_tokens);
  }
  return true;
}

// A chain gives up what it has not used for the longest time: with what is missing all that is
// older is gone.
void Pairing::Correct(const Pair& pair, const Predicted& predicted, int cached_tokens) {
  const auto account = workers_.find(pair.chain.stage0);
  if (account == workers_.end() || !account->second.chain_slot.has_value()) return;
  const size_t slot = *account->second.chain_slot;
  Slot& kept = chains_[slot];
  if (cached_tokens > 0) kept.misses = 0;
  if (cached_tokens >= predicted.cached_tokens) return;
  kept.misses += cached_tokens == 0 ? 1 : 0;
  if (kept.misses >= kMissesOfNone) return index_.Drop(slot);
  index_.DropUntil(slot, predicted.noted);
}

void Pairing::DropPredictions() {
  for (size_t slot = 0; slot < chains_.size(); ++slot) index_.Drop(slot);
}

double Pairing::LengthPlace(int prompt_tokens) const {
  const size_t bucket = LengthBucket(prompt_tokens);
  double below = 0;
  double all = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    below += i < bucket ? lengths_[i] : 0;
    all += lengths_[i];
  }
  return all == 0 ? 0 : (below + lengths_[bucket] / 2) / all;
}

}  // namespace baton::router
