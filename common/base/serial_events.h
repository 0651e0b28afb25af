// Hands events to a state machine one at a time and in order, also when the actions of one raise
// the next: those wait until the actions before them are done. Every shell that owns a core needs
// this.
#ifndef COMMON_BASE_SERIAL_EVENTS_H_
#define COMMON_BASE_SERIAL_EVENTS_H_

#include <deque>
#include <functional>
#include <utility>

namespace baton {

// One thread's. What is queued is what the actions of the event under way raised, so the core's own
// bounds bound it.
template <typename Event>
class SerialEvents {
 public:
  // `handle` does all that one event leads to before it returns.
  explicit SerialEvents(std::function<void(Event)> handle) : handle_(std::move(handle)) {}
  SerialEvents(const SerialEvents&) = delete;
  SerialEvents& operator=(const SerialEvents&) = delete;

  // Returns when `event` and all that it raised are handled; at once when an action raised it.
  void Raise(Event event) {
    if (handling_) return waiting_.push_back(std::move(event));
    handling_ = true;
    handle_(std::move(event));
    while (!waiting_.empty()) {
      Event next = std::move(waiting_.front());
      waiting_.pop_front();
      handle_(std::move(next));
    }
    handling_ = false;
  }

 private:
  const std::function<void(Event)> handle_;
  std::deque<Event> waiting_;
  bool handling_ = false;
};

}  // namespace baton

#endif  // COMMON_BASE_SERIAL_EVENTS_H_
