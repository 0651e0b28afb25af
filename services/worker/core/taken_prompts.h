// The prompts that a chain took last, for the routers that did not send them: what a router knows
// of a chain's prefix cache is what it has sent there and what it hears here. Keys are a router's
// own (services/router/core/prefix_keys.h) and mean nothing to the worker.
#ifndef SERVICES_WORKER_CORE_TAKEN_PROMPTS_H_
#define SERVICES_WORKER_CORE_TAKEN_PROMPTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton::worker {

// One prompt's, in StartRequest.prefix_keys. The longest prompt has some 130.
inline constexpr int kMaxPrefixKeys = 256;
// Keys of all prompts that are kept, and in one heartbeat.
inline constexpr int kMaxTakenKeys = 4096;

// Any thread.
class TakenPrompts {
 public:
  using Keys = std::vector<uint64_t>;
  struct News {
    std::vector<Keys> prompts;  // The oldest first.
    uint64_t last = 0;          // For Told, when the router has heard of these.
  };

  // `router`, by its incarnation, has sent a prompt. One without keys is not kept.
  void Add(uint64_t router, Keys keys);
  // What the router has not sent itself and not been told.
  News Untold(uint64_t router) const;
  void Told(uint64_t router, uint64_t last);

 private:
  // Routers of which it is known what they were told: as many as a worker has at once.
  static constexpr size_t kKnownRouters = 16;
  struct Prompt {
    uint64_t number = 0;  // From 1 on.
    uint64_t router = 0;
    Keys keys;
  };

  mutable Mutex mutex_;
  std::deque<Prompt> prompts_ ABSL_GUARDED_BY(mutex_);
  size_t keys_ ABSL_GUARDED_BY(mutex_) = 0;  // In `prompts_`.
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, uint64_t> told_ ABSL_GUARDED_BY(mutex_);  // By router.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_TAKEN_PROMPTS_H_
