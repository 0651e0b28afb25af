// Slots by load, the least first: a heap of four children a node, so that a change touches few
// cache lines. Its array is also the list of slots that random ones are drawn from.
#ifndef SERVICES_ROUTER_CORE_LOAD_INDEX_H_
#define SERVICES_ROUTER_CORE_LOAD_INDEX_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace baton::router {

// Compared in order.
struct LoadKey {
  int64_t tokens = 0;
  int64_t requests = 0;
  uint64_t last_used = 0;
  auto operator<=>(const LoadKey&) const = default;
};

class LoadIndex {
 public:
  size_t size() const { return heap_.size(); }
  bool Has(size_t slot) const { return slot < place_.size() && place_[slot] != kNone; }
  // There is one.
  size_t Least() const { return heap_.front().second; }
  // In no order that means anything, but for the first.
  size_t At(size_t place) const { return heap_[place].second; }

  // Adds the slot, or changes its key.
  void Set(size_t slot, const LoadKey& key) {
    if (slot >= place_.size()) place_.resize(slot + 1, kNone);
    if (place_[slot] == kNone) {
      place_[slot] = heap_.size();
      heap_.emplace_back(key, slot);
    } else {
      heap_[place_[slot]].first = key;
    }
    Settle(place_[slot]);
  }

  void Remove(size_t slot) {
    if (!Has(slot)) return;
    const size_t place = std::exchange(place_[slot], kNone);
    const auto last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    heap_[place] = last;
    place_[last.second] = place;
    Settle(place);
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  static constexpr size_t kChildren = 4;

  void Swap(size_t a, size_t b) {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].second] = a;
    place_[heap_[b].second] = b;
  }

  void Settle(size_t place) {
    while (place > 0 && heap_[place].first < heap_[(place - 1) / kChildren].first) {
      Swap(place, (place - 1) / kChildren);
      place = (place - 1) / kChildren;
    }
    for (;;) {
      size_t least = place;
      const size_t first = kChildren * place + 1;
      for (size_t child = first; child < std::min(first + kChildren, heap_.size()); ++child) {
        if (heap_[child].first < heap_[least].first) least = child;
      }
      if (least == place) return;
      Swap(place, least);
      place = least;
    }
  }

  std::vector<std::pair<LoadKey, size_t>> heap_;
  std::vector<size_t> place_;  // By slot.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LOAD_INDEX_H_
