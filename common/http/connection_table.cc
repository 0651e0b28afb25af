#include "common/http/connection_table.h"

#include <iterator>

namespace baton {

ConnectionTable::Admission ConnectionTable::Add(uint64_t id, const std::string& address) {
  Admission admission;
  const auto found = addresses_.find(address);
  const size_t open = found == addresses_.end() ? 0 : found->second.open;
  if (limits_.per_address != 0 && open >= limits_.per_address) {
    admission.evicted = EvictOldest(found->second.waiting);
  } else if (entries_.size() - reserve_open_ >= limits_.total) {
    admission.evicted = EvictOne();
  } else {
    admission.verdict = Verdict::kAdmitted;
  }
  if (admission.evicted.has_value()) admission.verdict = Verdict::kAdmitted;
  if (admission.verdict != Verdict::kAdmitted) {
    if (reserve_open_ >= limits_.reserved) admission.evicted = EvictOldest(reserve_waiting_);
    if (reserve_open_ >= limits_.reserved) return admission;
    admission.verdict = Verdict::kReserved;
  }
  Entry& entry = entries_[id];
  entry.address = address;
  entry.reserved = admission.verdict == Verdict::kReserved;
  ++(entry.reserved ? reserve_open_ : addresses_[address].open);
  BeginWaiting(id, entry);
  return admission;
}

bool ConnectionTable::BeginServing(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  EndWaiting(found->second);
  return true;
}

void ConnectionTable::Waiting(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  EndWaiting(found->second);
  BeginWaiting(id, found->second);
}

std::optional<uint64_t> ConnectionTable::EvictOne() {
  if (by_waiting_.empty()) return std::nullopt;
  return EvictOldest(addresses_[by_waiting_.rbegin()->second].waiting);
}

bool ConnectionTable::Remove(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  EndWaiting(found->second);
  if (found->second.reserved) {
    --reserve_open_;
  } else {
    const auto address = addresses_.find(found->second.address);
    if (--address->second.open == 0) addresses_.erase(address);
  }
  entries_.erase(found);
  return true;
}

std::optional<uint64_t> ConnectionTable::EvictOldest(Ids& waiting) {
  if (waiting.empty()) return std::nullopt;
  const uint64_t id = waiting.front();
  Remove(id);
  return id;
}

void ConnectionTable::BeginWaiting(uint64_t id, Entry& entry) {
  Ids& waiting = entry.reserved ? reserve_waiting_ : addresses_[entry.address].waiting;
  entry.waiting = true;
  entry.place = waiting.insert(waiting.end(), id);
  if (!entry.reserved) Reorder(entry.address, waiting.size() - 1, waiting.size());
}

void ConnectionTable::EndWaiting(Entry& entry) {
  if (!entry.waiting) return;
  Ids& waiting = entry.reserved ? reserve_waiting_ : addresses_[entry.address].waiting;
  entry.waiting = false;
  waiting.erase(entry.place);
  if (!entry.reserved) Reorder(entry.address, waiting.size() + 1, waiting.size());
}

void ConnectionTable::Reorder(const std::string& name, size_t before, size_t after) {
  if (before > 0) by_waiting_.erase({before, name});
  if (after > 0) by_waiting_.insert({after, name});
}

}  // namespace baton
