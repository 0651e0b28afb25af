// When a worker that was told to stop may leave: a state machine without a clock; the time comes
// with what is known.
//
// SERVING -> DRAINING -> LEAVING, by way of ENDING if the time was too short. A worker's own cores
// can't know by themselves that it is not needed: a call may be on its way to it, a later stage of
// a chain sees neither what waits at stage 0 nor which chunks will still come, and what has left a
// stage's memory may not have arrived yet. The routers know, since every request is a transaction
// of one of them, from its reservation until decode has its whole KV and, for decode, until its
// last token. So a worker leaves when its own cores are at rest, every router that answers knows
// that it drains, and none has a request left that needs it.
//
// Rejected: to ask the peers instead (a stage its stage 0, stage 0 each decode service for an
// acknowledgement of every commit). Three protocols for what one party knows anyway, and a call
// that is on its way is still missed.
#ifndef SERVICES_WORKER_CORE_DRAIN_H_
#define SERVICES_WORKER_CORE_DRAIN_H_

#include <cstdint>
#include <string>

#include "common/base/clock.h"

namespace baton::worker {

struct DrainOptions {
  int64_t drain_us = 0;           // For requests to finish.
  int64_t ending_us = 1'000'000;  // For the ends of the others to reach the routers.
};

enum class DrainPhase {
  kServing,
  kDraining,  // Nothing new; what runs goes on.
  kEnding,    // The time is over: what still runs is ended by its core.
  kLeaving,   // Deregister and end the process. The last phase.
};

// What a worker and the routers say at one moment.
struct DrainFacts {
  bool at_rest = false;         // The role's core holds no request.
  int untold_routers = 0;       // That answer this worker and don't know yet that it drains.
  int64_t needed_requests = 0;  // Sum over the other routers that answer.
};

// What the routers know of this worker's drain. One that does not answer any more (twice in a row)
// is not counted: its requests have ended with it.
struct DrainNews {
  int untold_routers = 0;
  int64_t needed_requests = 0;
};

class Drain {
 public:
  explicit Drain(DrainOptions options) : options_(options) {}

  // Told to stop. Again: nothing.
  void Begin(int64_t now_us);
  DrainPhase Update(const DrainFacts& facts, int64_t now_us);

  DrainPhase phase() const { return phase_; }
  int64_t begun_us() const { return begun_us_; }
  int64_t deadline_us() const { return deadline_us_; }  // kNeverUs before Begin.
  // When Update is due at the latest; facts may change before.
  int64_t NextDeadlineUs() const;

 private:
  const DrainOptions options_;
  DrainPhase phase_ = DrainPhase::kServing;
  int64_t begun_us_ = 0;
  int64_t deadline_us_ = kNeverUs;
};

// What the worker waits for, for people: "3 requests of the routers that need it; its own work".
std::string WhatDrainWaitsFor(const DrainFacts& facts);

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_DRAIN_H_
