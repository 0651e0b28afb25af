#include "services/router/core/prefix_index.h"

#include <algorithm>

#include "common/base/random.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

// All chains may hold one key: so many of them are looked at.
constexpr size_t kLookedAt = 8;

}  // namespace

uint64_t PrefixIndex::NameOf(size_t holder, uint64_t key) { return Mix64(Mix64(key) ^ holder); }

uint32_t PrefixIndex::Find(size_t holder, uint64_t key) const {
  const auto at = by_name_.find(NameOf(holder, key));
  return at == by_name_.end() ? kNone : at->second;
}

// Who has a key has those before it: they are noted together, and the later ones go first.
size_t PrefixIndex::Held(size_t holder, std::span<const uint64_t> keys) const {
  if (holder >= holders_.size() || holders_[holder].newest == kNone) return 0;
  const auto end = std::partition_point(keys.begin(), keys.end(),
                                        [&](uint64_t key) { return Find(holder, key) != kNone; });
  return static_cast<size_t>(end - keys.begin());
}

std::vector<PrefixIndex::Found> PrefixIndex::FindHolders(std::span<const uint64_t> keys,
                                                         size_t most) const {
  for (const uint64_t key : keys) by_key_.prefetch(key);
  const auto end = std::partition_point(keys.begin(), keys.end(),
                                        [&](uint64_t key) { return by_key_.contains(key); });
  std::vector<Found> found;
  for (size_t depth = static_cast<size_t>(end - keys.begin()); depth > 0; depth /= 2) {
    uint32_t at = by_key_.find(keys[depth - 1])->second;
    for (size_t looked = 0; at != kNone && looked < kLookedAt; ++looked) {
      const size_t holder = entries_[at].holder;
      const bool known = std::any_of(found.begin(), found.end(), [holder](const Found& other) {
        return other.holder == holder;
      });
      if (!known) found.push_back({holder, depth});
      if (found.size() >= most) return found;
      at = entries_[at].next;
    }
  }
  return found;
}

// What a large index has of a prompt is all over the memory: it is fetched before it is needed.
void PrefixIndex::Note(size_t holder, std::span<const uint64_t> keys, int64_t capacity_tokens) {
  if (holder >= holders_.size()) holders_.resize(holder + 1);
  Holder& of = holders_[holder];
  ++notes_;
  for (const uint64_t key : keys) {
    by_name_.prefetch(NameOf(holder, key));
    by_key_.prefetch(key);
  }
  found_.clear();
  for (const uint64_t key : keys) {
    found_.push_back(Find(holder, key));
    if (found_.back() != kNone) __builtin_prefetch(&entries_[found_.back()]);
  }
  for (size_t i = keys.size(); i > 0; --i) {
    uint32_t at = found_[i - 1];
    if (at == kNone) {
      if (used_ >= most_entries_) MakeRoom(of);
      if (used_ >= most_entries_) continue;
      at = Add(holder, keys[i - 1]);
      entries_[at].tokens = PrefixTokens(i) - PrefixTokens(i - 1);
      of.tokens += entries_[at].tokens;
    } else {
      Unlink(of, at);
    }
    entries_[at].noted = notes_;
    Append(of, at);
  }
  while (of.tokens > capacity_tokens) Erase(of, of.oldest);
}

// Its own oldest key goes; one that has none takes the next holder's.
void PrefixIndex::MakeRoom(Holder& own) {
  if (own.oldest != kNone && entries_[own.oldest].noted < notes_) return Erase(own, own.oldest);
  for (size_t i = 0; i < holders_.size(); ++i) {
    gives_ = (gives_ + 1) % holders_.size();
    Holder& other = holders_[gives_];
    if (&other != &own && other.oldest != kNone) return Erase(other, other.oldest);
  }
}

uint64_t PrefixIndex::NotedAt(size_t holder, uint64_t key) const {
  const uint32_t at = Find(holder, key);
  return at == kNone ? 0 : entries_[at].noted;
}

void PrefixIndex::DropUntil(size_t holder, uint64_t noted) {
  if (holder >= holders_.size()) return;
  Holder& of = holders_[holder];
  while (of.oldest != kNone && entries_[of.oldest].noted <= noted) Erase(of, of.oldest);
}

void PrefixIndex::Drop(size_t holder) { DropUntil(holder, notes_); }

uint32_t PrefixIndex::Add(size_t holder, uint64_t key) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t at = free_.back();
  free_.pop_back();
  ++used_;
  Entry& entry = entries_[at];
  entry = {.key = key, .holder = holder};
  const auto [first, is_first] = by_key_.try_emplace(key, at);
  if (!is_first) {
    entry.next = first->second;
    entries_[entry.next].before = at;
    first->second = at;
  }
  by_name_[NameOf(holder, key)] = at;
  return at;
}

void PrefixIndex::Append(Holder& of, uint32_t at) {
  Entry& entry = entries_[at];
  entry.older = of.newest;
  entry.newer = kNone;
  (of.newest == kNone ? of.oldest : entries_[of.newest].newer) = at;
  of.newest = at;
}

void PrefixIndex::Unlink(Holder& of, uint32_t at) {
  const Entry& entry = entries_[at];
  (entry.newer == kNone ? of.newest : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? of.oldest : entries_[entry.older].newer) = entry.newer;
}

void PrefixIndex::Erase(Holder& of, uint32_t at) {
  Unlink(of, at);
  const Entry& entry = entries_[at];
  of.tokens -= entry.tokens;
  if (entry.next != kNone) entries_[entry.next].before = entry.before;
  if (entry.before != kNone) {
    entries_[entry.before].next = entry.next;
  } else if (entry.next != kNone) {
    by_key_[entry.key] = entry.next;
  } else {
    by_key_.erase(entry.key);
  }
  by_name_.erase(NameOf(entry.holder, entry.key));
  free_.push_back(at);
  --used_;
}

}  // namespace baton::router
