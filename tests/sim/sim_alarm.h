// Wakes a core at its NextDeadlineUs, which is set after every event.
#ifndef TESTS_SIM_SIM_ALARM_H_
#define TESTS_SIM_SIM_ALARM_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimAlarm {
 public:
  SimAlarm(World& world, int node, const char* label, std::function<void()> ring)
      : world_(world), node_(node), label_(label), ring_(std::move(ring)) {}
  SimAlarm(const SimAlarm&) = delete;
  SimAlarm& operator=(const SimAlarm&) = delete;

  void Set(int64_t next_us) {
    SetLate(next_us, [] { return int64_t{0}; });
  }
  // Late, as on a loop that has other work before it.
  void SetOnBusyLoop(int64_t next_us) {
    SetLate(next_us, [this] { return world_.DrawLoopLateness(); });
  }

 private:
  template <typename DrawUs>
  void SetLate(int64_t next_us, DrawUs draw_us) {
    if (next_us == kNeverUs) return;
    const int64_t due_us = std::max(next_us, world_.now_us());
    if (due_us >= due_us_) return;
    due_us_ = due_us;
    world_.After(node_, due_us - world_.now_us() + draw_us(), label_, [this, due_us] {
      if (due_us_ == due_us) due_us_ = kNeverUs;
      ring_();
    });
  }

  World& world_;
  const int node_;
  const char* const label_;
  const std::function<void()> ring_;
  int64_t due_us_ = kNeverUs;  // When it rings next.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_ALARM_H_
