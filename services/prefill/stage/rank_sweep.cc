#include "services/prefill/stage/rank_sweep.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/collective/pending.h"

namespace baton::prefill {
namespace {

// Tokens are whole numbers that a float has exactly: no context is longer than 2^24.
using Words = std::array<float, 2>;

absl::Status Broadcast(Communicator& group, Words& words) {
  Pending pending;
  group.Broadcast(HostTensor(std::span<float>(words), words.size()), 0, pending.Add());
  return Annotate(pending.Wait(), "measuring what chunks cost");
}

absl::Status Tell(Communicator& group, SweepWord word) {
  Words words = {static_cast<float>(word.prompt_tokens), static_cast<float>(word.chunk_tokens)};
  return Broadcast(group, words);
}

absl::StatusOr<SweepWord> Hear(Communicator& group) {
  Words words = {};
  BATON_RETURN_IF_ERROR(Broadcast(group, words));
  const auto tokens = [](float word) {
    return word >= 0 && word <= 1 << 24 ? static_cast<int>(word) : -1;
  };
  return SweepWord{tokens(words[0]), tokens(words[1])};
}

}  // namespace

absl::Status RankSweep::Run(Communicator& group) {
  if (group.group().rank != 0) return FollowSweep(*executor_, [&] { return Hear(group); });
  if (!limits_ || std::exchange(tried_, true)) return Tell(group, {});
  const int64_t start_us = NowUs();
  SweepLimits limits = *limits_;
  limits.budget_us = std::min(limits.budget_us, kLongestRankSweepUs);
  const SweepResult result =
      SweepCosts(*executor_, limits, [&](SweepWord word) { return Tell(group, word); });
  LOG(kInfo) << group.group().size() << " ranks " << SweepText(result, NowUs() - start_us);
  {
    MutexLock lock(&mutex_);
    cost_ = result.cost;
  }
  return Tell(group, {});
}

std::optional<KnownCost> RankSweep::cost() const {
  MutexLock lock(&mutex_);
  return cost_;
}

}  // namespace baton::prefill
