// Consistent hashing: each owner has some points on a ring of 2^64, and a key falls to the owner of
// the next point. An owner that comes or goes moves only the keys next to its points.
#ifndef SERVICES_ROUTER_CORE_HASH_RING_H_
#define SERVICES_ROUTER_CORE_HASH_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/random.h"

namespace baton::router {

class HashRing {
 public:
  static constexpr uint64_t kPoints = 16;  // An owner's.

  static uint64_t Point(uint64_t owner, uint64_t number) { return Mix64(owner ^ Mix64(number)); }
  // How far the next point of `owner` is from `key`.
  static uint64_t Distance(uint64_t owner, uint64_t key) {
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (uint64_t i = 0; i < kPoints; ++i) least = std::min(least, Point(owner, i) - key);
    return least;
  }

  HashRing() : arcs_(kArcs) {}

  // `owner` is a hash that no other owner has.
  void Add(uint64_t owner, size_t slot) {
    for (uint64_t i = 0; i < kPoints; ++i) {
      const uint64_t point = Point(owner, i);
      std::vector<Entry>& arc = arcs_[ArcOf(point)];
      arc.insert(std::lower_bound(arc.begin(), arc.end(), Entry{point, 0}), {point, slot});
    }
    points_ += kPoints;
  }
  // It was added.
  void Remove(uint64_t owner) {
    for (uint64_t i = 0; i < kPoints; ++i) {
      const uint64_t point = Point(owner, i);
      std::vector<Entry>& arc = arcs_[ArcOf(point)];
      arc.erase(std::lower_bound(arc.begin(), arc.end(), Entry{point, 0}));
    }
    points_ -= kPoints;
  }
  // nullopt: the ring is empty.
  std::optional<size_t> OwnerOf(uint64_t key) const {
    if (points_ == 0) return std::nullopt;
    const size_t first = ArcOf(key);
    const std::vector<Entry>& own = arcs_[first];
    const auto next = std::lower_bound(own.begin(), own.end(), Entry{key, 0});
    if (next != own.end()) return next->second;
    size_t arc = (first + 1) % kArcs;
    while (arcs_[arc].empty()) arc = (arc + 1) % kArcs;
    return arcs_[arc].front().second;
  }

 private:
  using Entry = std::pair<uint64_t, size_t>;  // Point and slot.

  static constexpr int kArcBits = 12;
  static constexpr size_t kArcs = size_t{1} << kArcBits;

  static size_t ArcOf(uint64_t point) { return static_cast<size_t>(point >> (64 - kArcBits)); }

  // Equal parts of the ring, each with its points in order: a look-up touches few cache lines.
  std::vector<std::vector<Entry>> arcs_;
  size_t points_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_HASH_RING_H_
