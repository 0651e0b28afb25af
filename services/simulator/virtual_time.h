// What the simulated processes share: the clock with its event queue, messages with a latency,
// connections with a bandwidth, and a core's alarm.
#ifndef SERVICES_SIMULATOR_VIRTUAL_TIME_H_
#define SERVICES_SIMULATOR_VIRTUAL_TIME_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/sim/event_queue.h"

namespace baton::simulator {

struct VirtualTime {
  explicit VirtualTime(int64_t one_way_us) : latency_us(one_way_us) {}

  int64_t now_us() const { return queue.now_us(); }
  // Runs `arrive` at another process after the latency; messages of one connection stay in order.
  void Deliver(std::function<void()> arrive) { At(now_us() + latency_us, std::move(arrive)); }
  void At(int64_t at_us, std::function<void()> run) { queue.At(at_us, std::move(run)); }

  sim::EventQueue queue;
  const int64_t latency_us;
};

// Wakes a core at its NextDeadlineUs, which is set after every event.
class Alarm {
 public:
  Alarm(VirtualTime& time, std::function<void()> ring) : time_(time), ring_(std::move(ring)) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void Set(int64_t due_us) {
    if (due_us == kNeverUs || due_us >= set_us_) return;
    set_us_ = std::max(due_us, time_.now_us());
    time_.At(set_us_, [this, at_us = set_us_] {
      if (at_us != set_us_) return;  // Set to an earlier time meanwhile.
      set_us_ = kNeverUs;
      ring_();
    });
  }

 private:
  VirtualTime& time_;
  std::function<void()> ring_;
  int64_t set_us_ = kNeverUs;  // The next alarm.
};

// A connection with a bandwidth: messages pass one after the other, each as long as its bytes take.
// It has no latency; VirtualTime has.
class Pipe {
 public:
  struct Passage {
    int64_t begin_us = 0;  // The first byte is sent.
    int64_t end_us = 0;    // The last byte is sent.
  };

  // Gigabits per second; 0 means no limit.
  explicit Pipe(int64_t gbps) : gbps_(gbps) {}

  Passage Send(int64_t now_us, int64_t bytes) {
    const int64_t begin_us = std::max(now_us, free_us_);
    free_us_ = begin_us + TakesUs(bytes);
    return {begin_us, free_us_};
  }

 private:
  int64_t TakesUs(int64_t bytes) const {
    if (gbps_ == 0) return 0;
    return static_cast<int64_t>(
        std::ceil(static_cast<double>(bytes) * 8e-3 / static_cast<double>(gbps_)));
  }

  int64_t gbps_;
  int64_t free_us_ = 0;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_VIRTUAL_TIME_H_
