// Messages of an epoch that are told again in a later one, where they must have no effect. No link
// or connection of today keeps one so long, and the cores promise not to rely on that.
#ifndef TESTS_SIM_STALE_EVENTS_H_
#define TESTS_SIM_STALE_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/sim/world.h"

namespace baton::sim {

template <typename Event>
class StaleEvents {
 public:
  static constexpr double kKept = 0.1;

  StaleEvents(World& world, int node) : world_(world), node_(node) {}

  void Keep(const Event& event, double chance = kKept) {
    if (kept_.size() < kMost && world_.random().Chance(chance)) kept_.push_back(event);
  }
  // Each by itself, some time in the epoch that has just begun.
  void TellLater(const char* label, const std::function<void(const Event&)>& tell) {
    for (const Event& event : std::exchange(kept_, {})) {
      const int64_t latest_us = world_.random().Chance(0.5) ? 5000 : 3'000'000;
      world_.After(node_, world_.random().Between(0, latest_us), label,
                   [tell, event] { tell(event); });
    }
  }

 private:
  static constexpr size_t kMost = 6;

  World& world_;
  const int node_;
  std::vector<Event> kept_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_STALE_EVENTS_H_
