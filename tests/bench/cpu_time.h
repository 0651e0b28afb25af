// What this process has taken of the processors.
#ifndef TESTS_BENCH_CPU_TIME_H_
#define TESTS_BENCH_CPU_TIME_H_

#include <sys/resource.h>

#include "common/base/check.h"

namespace baton {

// Microseconds of all threads, in user and system mode.
inline double CpuUs() {
  rusage usage{};
  BATON_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

}  // namespace baton

#endif  // TESTS_BENCH_CPU_TIME_H_
