// Requests whose structures are being compiled. A service holds them back until that is done, so
// that the step that draws for all of its batch never waits for one of them.
#ifndef COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_
#define COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_

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
    held_.push_back({constraint, std::move(request)});
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
  // Those that need not wait any more, or `all`, in their order.
  std::vector<Request> Take(bool all) {
    std::vector<Request> taken;
    std::vector<Held> left;
    for (Held& held : held_) {
      if (all || held.constraint->ready()) {
        taken.push_back(std::move(held.request));
      } else {
        left.push_back(std::move(held));
      }
    }
    held_ = std::move(left);
    return taken;
  }
  // When to look again.
  int64_t NextUs(int64_t now_us) const { return held_.empty() ? kNeverUs : now_us + kLookAgainUs; }
  bool empty() const { return held_.empty(); }

  static constexpr size_t kMost = 1024;

 private:
  // Rejected: a call from the compiling thread, which the service might not outlive.
  static constexpr int64_t kLookAgainUs = 2'000;

  struct Held {
    std::shared_ptr<const PendingConstraint> constraint;
    Request request;
  };

  std::vector<Held> held_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_COMPILING_REQUESTS_H_
