// A deterministic event queue: closures run in order of virtual time, ties in order of insertion.
#ifndef COMMON_SIM_EVENT_QUEUE_H_
#define COMMON_SIM_EVENT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"

namespace baton::sim {

class EventQueue {
 public:
  int64_t now_us() const { return now_us_; }
  bool empty() const { return queue_.empty(); }
  uint64_t executed() const { return executed_; }

  // Runs `run` at `at_us`, which must not lie in the past.
  void At(int64_t at_us, std::function<void()> run) {
    BATON_CHECK(at_us >= now_us_) << "event at " << at_us << " before now " << now_us_;
    queue_.push(Entry{at_us, next_sequence_++, std::move(run)});
  }

  // Advances to the next event and runs it. False if there is none.
  bool Step() {
    if (queue_.empty()) return false;
    // priority_queue::top is const; the entry is popped at once, so moving out of it is safe.
    Entry entry = std::move(const_cast<Entry&>(queue_.top()));
    queue_.pop();
    now_us_ = entry.at_us;
    ++executed_;
    entry.run();
    return true;
  }

  // Folds `value` and the time into the hash of the run.
  void Record(uint64_t value) {
    hash_ = Mix64(hash_ ^ Mix64(value + static_cast<uint64_t>(now_us_) * 0x9e3779b97f4a7c15ULL));
  }
  uint64_t hash() const { return hash_; }

 private:
  struct Entry {
    int64_t at_us;
    uint64_t sequence;
    std::function<void()> run;
    bool operator<(const Entry& other) const {  // Earliest on top.
      return at_us != other.at_us ? at_us > other.at_us : sequence > other.sequence;
    }
  };
  std::priority_queue<Entry> queue_;
  int64_t now_us_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t executed_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace baton::sim

#endif  // COMMON_SIM_EVENT_QUEUE_H_
