#include "services/router/discovery/core/pod_watch.h"

#include <algorithm>
#include <utility>

namespace baton::router {
namespace {

constexpr size_t kMaxPods = 4096;  // As many workers as a router takes.
constexpr int64_t kFirstPauseUs = 100'000;
constexpr int64_t kLongestPauseUs = 30'000'000;
// The API may ask for more patience than that; it gets this much.
constexpr int64_t kLongestRetryAfterUs = 60'000'000;
// A watch that lasts less than this was no watch, however politely it ended.
constexpr int64_t kShortUs = 1'000'000;
// After so many failures in a row the version itself may be the trouble.
constexpr int kFailuresOfAVersion = 4;
constexpr int kGone = 410;

}  // namespace

void PodWatch::Handle(const PodWatchEvent& event, int64_t now_us,
                      std::vector<PodWatchAction>& actions) {
  now_us_ = now_us;
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  if (state_ == State::kWaiting && now_us_ >= ask_at_us_) Ask();
  actions_ = nullptr;
}

int64_t PodWatch::NextDeadlineUs() const {
  return state_ == State::kWaiting ? ask_at_us_ : kNeverUs;
}

void PodWatch::Ask() {
  asked_us_ = now_us_;
  if (resource_version_.empty()) {
    state_ = State::kListing;
    actions_->emplace_back(std::in_place_type<ListPods>, ListPods{continue_token_});
  } else {
    state_ = State::kWatching;
    actions_->emplace_back(std::in_place_type<WatchPods>, WatchPods{resource_version_});
  }
}

void PodWatch::AskAgainIn(int64_t pause_us) {
  state_ = State::kWaiting;
  ask_at_us_ = now_us_ + pause_us;
}

void PodWatch::Fail(int64_t at_least_us) {
  const int doublings = std::min(failures_, 16);
  ++failures_;
  if (failures_ % kFailuresOfAVersion == 0) ListAnew();
  const int64_t pause_us = std::min(kLongestPauseUs, kFirstPauseUs << doublings);
  AskAgainIn(std::max(pause_us, std::min(at_least_us, kLongestRetryAfterUs)));
}

void PodWatch::ListAnew() {
  resource_version_.clear();
  continue_token_.clear();
  listing_.clear();
}

void PodWatch::Keep(std::map<std::string, Pod>& pods, const Pod& pod) {
  if (pods.size() >= kMaxPods && !pods.contains(pod.uid)) {
    overfull_ = true;
    return;
  }
  pods[pod.uid] = pod;
}

void PodWatch::On(const PodsListed& event) {
  if (state_ != State::kListing) return;
  for (const Pod& pod : event.page.pods) Keep(listing_, pod);
  continue_token_ = event.page.continue_token;
  if (!continue_token_.empty()) return;  // The request's end asks for the next page.
  overfull_ = overfull_ && listing_.size() >= kMaxPods;
  if (pods_ != listing_) ++version_;
  pods_ = std::exchange(listing_, {});
  resource_version_ = event.page.resource_version;
}

void PodWatch::On(const PodChanged& event) {
  if (state_ != State::kWatching) return;
  const PodChange& change = event.change;
  if (change.type == PodChange::Type::kError) {
    actions_->emplace_back(std::in_place_type<AbandonRequest>);
    if (change.error_code != kGone) return Fail(0);
    ListAnew();
    // At once, but for an API that finds every version too old.
    return now_us_ - asked_us_ < kShortUs ? Fail(0) : AskAgainIn(0);
  }
  failures_ = 0;
  resource_version_ = change.resource_version;
  if (change.type == PodChange::Type::kBookmark) return;
  if (change.type == PodChange::Type::kDeleted) {
    if (pods_.erase(change.pod.uid) > 0) ++version_;
    return;
  }
  const auto known = pods_.find(change.pod.uid);
  if (known != pods_.end() && known->second == change.pod) return;
  Keep(pods_, change.pod);
  ++version_;
}

void PodWatch::On(const ApiRequestEnded& event) {
  if (state_ == State::kWaiting) return;
  const bool listing = state_ == State::kListing;
  if (event.http_status == kGone) {
    ListAnew();  // A page or a version that the API has forgotten.
    return now_us_ - asked_us_ < kShortUs || listing ? Fail(event.retry_after_us) : AskAgainIn(0);
  }
  if (event.http_status != 200 || !event.status.ok()) return Fail(event.retry_after_us);
  if (listing) {
    failures_ = 0;
    return AskAgainIn(0);  // The next page, or the watch.
  }
  if (now_us_ - asked_us_ < kShortUs) return Fail(0);
  failures_ = 0;
  AskAgainIn(0);
}

}  // namespace baton::router
