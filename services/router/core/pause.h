// Whether this router itself stood still: a stopped container, a swapped-out host, a loop with more
// to do than it can. It is measured by how late the router's own ticks are, which come at least
// every `beat_us`, and noticed with the first event that is handled late: what waits in the mailbox
// comes before the tick, and a request must not be refused for what is behind it there. Rejected:
// by how long its mailbox is, or how old the events in it are, since both grow under load that it
// bears well.
//
// A router that stood still may not judge others by their silence: what they sent meanwhile waits
// in its sockets and its mailbox. So every wait for another process is prolonged by one grace,
// once: a worker's lease once between two heartbeats, a hand-off once for an attempt, a wait for a
// pair once for a request. Once, so that a router that is always late still ends what is dead, only
// later by the grace. Rejected: not to judge for a while after every pause, since pauses may follow
// one another for ever. Deadlines are promises to clients, and are never put off.
#ifndef SERVICES_ROUTER_CORE_PAUSE_H_
#define SERVICES_ROUTER_CORE_PAUSE_H_

#include <cstdint>

#include "common/base/clock.h"

namespace baton::router {

class PauseWatch {
 public:
  // 0: ticks are not regular, and no pause is detected.
  explicit PauseWatch(int64_t beat_us) : beat_us_(beat_us) {}

  // The loop is in time at `now_us`, however long it took: a start, or a tick.
  void Begin(int64_t now_us) { last_us_ = now_us; }

  // With every event, before it is looked at. True, once for each pause: the tick before was so
  // long ago that the router stood still for a beat at least.
  bool Notice(int64_t now_us) {
    const bool late = beat_us_ > 0 && now_us - last_us_ > 2 * beat_us_;
    if (late) last_us_ = now_us;
    return late;
  }

  // When the next tick is due at the latest.
  int64_t NextUs() const {
    return beat_us_ == 0 || last_us_ == kNeverUs ? kNeverUs : last_us_ + beat_us_;
  }

 private:
  int64_t beat_us_;
  int64_t last_us_ = kNeverUs;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PAUSE_H_
