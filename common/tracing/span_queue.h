// A bounded queue between the threads that end spans and the exporter's thread; pushing never
// waits. If the exporter falls behind, the newest spans are dropped and counted: the older ones
// show how the problem started.
#ifndef COMMON_TRACING_SPAN_QUEUE_H_
#define COMMON_TRACING_SPAN_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/tracing/span.h"

namespace baton::tracing {

// Thread-safe. The lock is held only to move spans.
class SpanQueue {
 public:
  // The outcome of a push.
  enum class Pushed { kTaken, kBatchFull, kDropped };

  // Holds `limit` spans; every `batch`-th push reports that a batch is full.
  SpanQueue(size_t limit, size_t batch) : limit_(limit), batch_(batch) {}

  Pushed Push(Span span) {
    MutexLock lock(&mutex_);
    if (spans_.size() >= limit_) return Pushed::kDropped;
    spans_.push_back(std::move(span));
    return spans_.size() % batch_ == 0 ? Pushed::kBatchFull : Pushed::kTaken;
  }

  // Appends up to a batch of the oldest to `out`.
  void Take(std::vector<Span>& out) {
    MutexLock lock(&mutex_);
    const auto end = spans_.begin() + static_cast<std::ptrdiff_t>(std::min(batch_, spans_.size()));
    std::move(spans_.begin(), end, std::back_inserter(out));
    spans_.erase(spans_.begin(), end);
  }

  size_t size() const {
    MutexLock lock(&mutex_);
    return spans_.size();
  }

 private:
  const size_t limit_;
  const size_t batch_;
  mutable Mutex mutex_;
  std::deque<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_SPAN_QUEUE_H_
