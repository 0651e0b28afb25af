// What the simulated processes share: the clock that is their event queue, messages on their way,
// and a core's own wake-up.
#ifndef SERVICES_SIMULATOR_VIRTUAL_TIME_H_
#define SERVICES_SIMULATOR_VIRTUAL_TIME_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/sim/event_queue.h"

namespace baton::simulator {

struct VirtualTime {
  explicit VirtualTime(int64_t one_way_us) : latency_us(one_way_us) {}

  int64_t now_us() const { return queue.now_us(); }
  // Arrives at another process; messages of one connection stay in order.
  void Deliver(std::function<void()> arrive) { At(now_us() + latency_us, std::move(arrive)); }
  void At(int64_t at_us, std::function<void()> run) { queue.At(at_us, std::move(run)); }

  sim::EventQueue queue;
  const int64_t latency_us;
};

// Wakes a core when it wants to be: what its NextDeadlineUs says after every event.
class Alarm {
 public:
  Alarm(VirtualTime& time, std::function<void()> ring) : time_(time), ring_(std::move(ring)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void Set(int64_t due_us) {
    if (due_us == kNeverUs || due_us >= set_us_) return;
    set_us_ = std::max(due_us, time_.now_us());
    time_.At(set_us_, [this, at_us = set_us_] {
      if (at_us != set_us_) return;  // Set for earlier meanwhile.
      set_us_ = kNeverUs;
      ring_();
    });
  }

 private:
  VirtualTime& time_;
  std::function<void()> ring_;
  int64_t set_us_ = kNeverUs;  // When it rings next.
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_VIRTUAL_TIME_H_
