#include "services/prefill/chain/profile_keeper.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace baton::prefill {
namespace {

uint64_t PlansOf(const std::vector<LearnedCost>& costs) {
  uint64_t plans = 0;
  for (const LearnedCost& stage : costs) plans += stage.plans;
  return plans;
}

}  // namespace

ProfileKeeper::ProfileKeeper(Options options)
    : options_(std::move(options)), writer_("baton-profile") {
  if (options_.writes) writer_.Start();
}

ProfileKeeper::~ProfileKeeper() { writer_.Stop(); }

std::vector<KnownCost> ProfileKeeper::KnownOf(const std::vector<int>& stage_layers) const {
  std::vector<KnownCost> known;
  if (!options_.loaded || options_.loaded->stages.size() != stage_layers.size()) return known;
  for (size_t stage = 0; stage < stage_layers.size(); ++stage) {
    const StageProfile& measured = options_.loaded->stages[stage];
    known.push_back({measured.OfLayers(stage_layers[stage]), measured.error});
  }
  return known;
}

std::optional<ChunkProfile> ProfileKeeper::ProfileOf(const std::vector<LearnedCost>& costs) const {
  if (costs.empty()) return std::nullopt;
  ChunkProfile profile{options_.here, {}};
  const bool goes_on = options_.loaded && options_.loaded->stages.size() == costs.size();
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    const LearnedCost& learned = costs[stage];
    if (!learned.cost || learned.layers < 1) return std::nullopt;
    const int64_t before = goes_on ? options_.loaded->stages[stage].plans : 0;
    profile.stages.push_back({learned.layers, *learned.cost, learned.error,
                              before + static_cast<int64_t>(learned.plans)});
  }
  return profile;
}

void ProfileKeeper::Keep(const std::vector<LearnedCost>& costs, int64_t now_us) {
  if (last_kept_us_ && now_us - *last_kept_us_ < kIntervalUs) return;
  if (writing_) return;  // A disk that takes so long gets no second one.
  const uint64_t kept_before = plans_kept_;
  Write(costs);
  if (plans_kept_ != kept_before) last_kept_us_ = now_us;
}

void ProfileKeeper::KeepLast(const std::vector<LearnedCost>& costs) { Write(costs); }

void ProfileKeeper::Write(const std::vector<LearnedCost>& costs) {
  const uint64_t plans = PlansOf(costs);
  if (!options_.writes || plans == plans_kept_) return;
  std::optional<ChunkProfile> profile = ProfileOf(costs);
  if (!profile) return;
  plans_kept_ = plans;
  writing_ = true;
  const bool posted = writer_.PostCompletion([this, profile = *std::move(profile)] {
    const absl::Status status = ReplaceFile(options_.path, ChunkProfileText(profile));
    const bool news = !std::exchange(told_, true) || failed_ == status.ok();
    failed_ = !status.ok();
    if (news && failed_) LOG(kWarning) << "what chunks cost is not kept: " << status.message();
    if (news && !failed_) LOG(kInfo) << "what chunks cost is kept in " << options_.path;
    writing_ = false;
  });
  if (!posted) writing_ = false;
}

}  // namespace baton::prefill
