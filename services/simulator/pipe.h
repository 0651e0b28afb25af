// What a connection's bandwidth does to messages: one after the other, each as long as its bytes
// take. A pure value; it knows no latency.
#ifndef SERVICES_SIMULATOR_PIPE_H_
#define SERVICES_SIMULATOR_PIPE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace baton::simulator {

class Pipe {
 public:
  struct Passage {
    int64_t begin_us = 0;  // The first byte leaves,
    int64_t end_us = 0;    // and the last one.
  };

  // Gigabits a second; 0: no limit.
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

#endif  // SERVICES_SIMULATOR_PIPE_H_
