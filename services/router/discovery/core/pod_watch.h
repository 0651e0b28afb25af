// Which pods there are, by a list and a watch of the Kubernetes API: what to ask next, after every
// answer and failure. Event in, actions out; deterministic.
//
// LISTING, page by page -> WATCHING from the list's resourceVersion. A watch that ends goes on from
// the last version that it brought (bookmarks keep it young); 410 Gone means that this version is
// forgotten: list again. Failures are retried with a growing pause and remove no pod: what was
// known counts until the API says otherwise.
#ifndef SERVICES_ROUTER_DISCOVERY_CORE_POD_WATCH_H_
#define SERVICES_ROUTER_DISCOVERY_CORE_POD_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "services/router/discovery/core/pod.h"

namespace baton::router {

// ---- Events ----
struct PodsListed {
  PodPage page;
};
struct PodChanged {
  PodChange change;
};
// The list or watch under way is over. `http_status`: 0 if none came. `status`: what else went
// wrong, on the network or in what came (garbage, too long a line).
struct ApiRequestEnded {
  int http_status = 0;
  absl::Status status;
  int64_t retry_after_us = 0;  // As the API asks for.
};
struct PodWatchTick {};
using PodWatchEvent = std::variant<PodsListed, PodChanged, ApiRequestEnded, PodWatchTick>;

// ---- Actions: one request at a time ----
struct ListPods {
  std::string continue_token;
};
struct WatchPods {
  std::string resource_version;
};
struct AbandonRequest {};  // Ignore the request that is under way.
using PodWatchAction = std::variant<ListPods, WatchPods, AbandonRequest>;

class PodWatch {
 public:
  void Handle(const PodWatchEvent& event, int64_t now_us, std::vector<PodWatchAction>& actions);
  int64_t NextDeadlineUs() const;

  // By uid. Pods beyond the limit are not kept.
  const std::map<std::string, Pod>& pods() const { return pods_; }
  // Grows with every change of `pods`.
  uint64_t version() const { return version_; }
  bool overfull() const { return overfull_; }
  int failures() const { return failures_; }  // In a row.

 private:
  enum class State { kWaiting, kListing, kWatching };

  void On(const PodsListed& event);
  void On(const PodChanged& event);
  void On(const ApiRequestEnded& event);
  void On(const PodWatchTick&) {}
  void Ask();
  void AskAgainIn(int64_t pause_us);
  void Fail(int64_t at_least_us);
  void ListAnew();
  void Keep(std::map<std::string, Pod>& pods, const Pod& pod);

  State state_ = State::kWaiting;
  std::map<std::string, Pod> pods_;
  std::map<std::string, Pod> listing_;  // Pods of the pages received so far.
  std::string continue_token_;
  std::string resource_version_;  // Empty: a list is needed.
  uint64_t version_ = 0;
  bool overfull_ = false;
  int failures_ = 0;
  int64_t ask_at_us_ = 0;
  int64_t asked_us_ = 0;

  // Valid while an event is handled.
  int64_t now_us_ = 0;
  std::vector<PodWatchAction>* actions_ = nullptr;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_CORE_POD_WATCH_H_
