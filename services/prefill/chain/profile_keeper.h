// --chunk-profile on stage 0: what its file says of a chain's costs, and the file again once more
// is known (common/chunking/chunk_profile.h). It decides when to write; the bytes leave on a thread
// of its own, so that a slow disk costs no plan.
#ifndef SERVICES_PREFILL_CHAIN_PROFILE_KEEPER_H_
#define SERVICES_PREFILL_CHAIN_PROFILE_KEEPER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/event_loop.h"
#include "common/chunking/chunk_profile.h"
#include "services/prefill/core/chain_planner.h"

namespace baton::prefill {

// Loop thread.
class ProfileKeeper {
 public:
  struct Options {
    std::string path;  // Empty: no file, and the keeper is not for use.
    MeasuredOn here;
    std::optional<ChunkProfile> loaded;  // What the file said at the start, if it holds here.
    bool writes = true;
  };
  explicit ProfileKeeper(Options options);
  ~ProfileKeeper();  // What is to be written is written.

  // The costs of stages with these layer counts; empty: the file has no chain of as many stages.
  std::vector<KnownCost> KnownOf(const std::vector<int>& stage_layers) const;

  // What the planner knows now. Written if every stage's costs are known and something was learned
  // since, at most every kIntervalUs.
  void Keep(const std::vector<LearnedCost>& costs, int64_t now_us);
  // At the end, however short ago the last time was.
  void KeepLast(const std::vector<LearnedCost>& costs);

  static constexpr int64_t kIntervalUs = 30'000'000;

 private:
  std::optional<ChunkProfile> ProfileOf(const std::vector<LearnedCost>& costs) const;
  void Write(const std::vector<LearnedCost>& costs);

  const Options options_;
  uint64_t plans_kept_ = 0;              // By all stages' fits, when it was written last.
  std::optional<int64_t> last_kept_us_;  // nullopt: not yet.
  std::atomic<bool> writing_{false};
  bool told_ = false;    // Writing thread: how writing goes.
  bool failed_ = false;  // Writing thread.
  EventLoop writer_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_PROFILE_KEEPER_H_
