#include "common/engine/timed/precise_wait.h"

#include <sys/prctl.h>
#include <time.h>

#include <thread>

#include "common/base/clock.h"

namespace baton {
namespace {

// What a wake-up is late by on the machines that this was measured on; spent looking at the clock.
constexpr int64_t kAwakeUs = 60;

}  // namespace

void WaitUntilUs(int64_t deadline_us) {
  // The kernel lets a thread's timers be 50 us late by itself, to wake several at once.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  (void)slack_set;  // If it is refused, waits are a little longer.
  int64_t left_us = deadline_us - NowUs();
  while (left_us > kAwakeUs) {
    const int64_t sleep_us = left_us - kAwakeUs;
    const timespec duration{static_cast<time_t>(sleep_us / 1'000'000),
                            static_cast<long>(sleep_us % 1'000'000 * 1000)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);  // A signal only ends it early.
    left_us = deadline_us - NowUs();
  }
  while (NowUs() < deadline_us) std::this_thread::yield();
}

}  // namespace baton
