// Requests whose structures are being compiled. A service holds them back until that is done, so
// that the step that draws for all of its batch never waits for one of them.
#ifndef COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_
#define COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/sampling/constraints.h"

namespace baton {

// One thread at a time.
template <typename Request>
class CompilingRequests {
 public:
  // Takes `request` if there is something to wait for, and room.
  bool Hold(const std::shared_ptr<const PendingConstraint>& constraint, Request& request) {
    if (constraint == nullptr || constraint->ready() || held_.size() >= kMost) return false;
    held_.push_back({constraint, kNeverUs, std::move(request)});
    return true;
  }
  // Takes `request`, whose structure another process compiles, until Remove or that time; if there
  // is room.
  bool HoldUntil(int64_t until_us, Request& request) {
    if (held_.size() >= kMostElsewhere) return false;
    held_.push_back({nullptr, until_us, std::move(request)});
    return true;
  }
  // The one that `is` it; null, or nothing, if there is none.
  template <typename Is>
  const Request* Find(const Is& is) const {
    for (const Held& held : held_) {
      if (is(held.request)) return &held.request;
    }
    return nullptr;
  }
  template <typename Is>
  std::optional<Request> Remove(const Is& is) {
    for (auto held = held_.begin(); held != held_.end(); ++held) {
      if (!is(std::as_const(held->request))) continue;
      std::optional<Request> request = std::move(held->request);
      held_.erase(held);
      return request;
    }
    return std::nullopt;
  }
  // Those that need not wait any more, in their order. At kNeverUs: all.
  std::vector<Request> Take(int64_t now_us) {
    std::vector<Request> taken;
    std::vector<Held> left;
    for (Held& held : held_) {
      if (now_us >= held.until_us || (held.constraint != nullptr && held.constraint->ready())) {
        taken.push_back(std::move(held.request));
      } else {
        left.push_back(std::move(held));
      }
    }
    held_ = std::move(left);
    return taken;
  }
  // When to look again.
  int64_t NextUs(int64_t now_us) const {
    int64_t next_us = kNeverUs;
    for (const Held& held : held_) {
      next_us = std::min(next_us, held.constraint ? now_us + kLookAgainUs : held.until_us);
    }
    return next_us;
  }
  bool empty() const { return held_.empty(); }

  static constexpr size_t kMost = 1024;
  static constexpr size_t kMostElsewhere = 256;  // Which another process may queue.

 private:
  // Rejected: a call from the compiling thread, which the service might not outlive.
  static constexpr int64_t kLookAgainUs = 2'000;

  struct Held {
    std::shared_ptr<const PendingConstraint> constraint;  // Null: it is compiled elsewhere.
    int64_t until_us = kNeverUs;
    Request request;
  };

  std::vector<Held> held_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_
