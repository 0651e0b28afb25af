#include "services/router/discovery/kubernetes_discovery.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "services/router/discovery/api_request.h"
#include "services/router/discovery/core/announcer.h"
#include "services/router/discovery/core/pod_watch.h"

namespace baton::router {
namespace {

constexpr int kPageItems = 100;
constexpr int64_t kListTimeoutMs = 30'000;
// The API ends a watch after so long; a connection that has died unnoticed shows soon after.
constexpr int kWatchSeconds = 290;
constexpr int64_t kWatchTimeoutMs = int64_t{kWatchSeconds + 30} * 1000;
constexpr int64_t kLongestPollUs = 1'000'000;
// One failure in so many is logged, and the first.
constexpr int kFailuresToTell = 20;

std::string WhatToDo(int http_status, const std::string& name_space) {
  if (http_status == 401) return "; the service account's token is not accepted, it is read again";
  if (http_status != 403) return "";
  return absl::StrCat(
      "; the service account needs a Role with the verbs list and watch on pods in ", name_space);
}

}  // namespace

class KubernetesDiscovery::Impl {
 public:
  Impl(KubernetesDiscoveryOptions options, ApiAccess access)
      : options_(std::move(options)),
        path_(absl::StrCat("/api/v1/namespaces/", UrlEscaped(options_.name_space),
                           "/pods?labelSelector=", UrlEscaped(options_.selector))),
        announcer_(options_.worker_port),
        announcements_(options_.cluster_port, options_.host, options_.security,
                       [this](const std::string& address, const absl::Status& status) {
                         {
                           MutexLock lock(&mutex_);
                           answers_.emplace_back(address, status);
                         }
                         api_.Wake();
                       }),
        api_(std::move(access)),
        thread_([this] { Run(); }) {}

  ~Impl() {
    stopping_ = true;
    api_.Wake();
    thread_.join();
    announcements_.Stop();
  }

 private:
  void Run();
  void Handle(const PodWatchEvent& event);
  void Perform(const ListPods& action);
  void Perform(const WatchPods& action);
  void Perform(const AbandonRequest&) { abandoned_ = true; }
  bool TakePage(std::string_view body);
  bool TakeLine(std::string_view line);
  void EndRequest(const ApiRequest::Outcome& outcome);
  void FollowPods();
  void TakeAnswers();

  const KubernetesDiscoveryOptions options_;
  const std::string path_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<std::pair<std::string, absl::Status>> answers_ ABSL_GUARDED_BY(mutex_);

  // The thread's own.
  PodWatch watch_;
  Announcer announcer_;
  uint64_t followed_version_ = 0;
  bool abandoned_ = false;  // The request under way, by an event that came with it.
  bool overfull_told_ = false;
  std::vector<PodWatchAction> later_;  // Requests that wait for the end of a callback.

  Announcements announcements_;
  ApiRequest api_;
  std::thread thread_;  // Last: it uses the rest.
};

void KubernetesDiscovery::Impl::Run() {
  pthread_setname_np(pthread_self(), "baton-kubernetes");
  while (!stopping_) {
    const int64_t now_us = NowUs();
    if (watch_.NextDeadlineUs() <= now_us) Handle(PodWatchTick{});
    for (const PodWatchAction& action : std::exchange(later_, {})) {
      std::visit([this](const auto& a) { Perform(a); }, action);
    }
    TakeAnswers();
    FollowPods();
    for (const std::string& address : announcer_.BeginAnnouncing(now_us)) {
      announcements_.Announce(address);
    }
    const int64_t next_us = std::min(watch_.NextDeadlineUs(), announcer_.NextDeadlineUs());
    const int64_t pause_us = std::clamp<int64_t>(next_us - NowUs(), 0, kLongestPollUs);
    api_.Poll(pause_us / 1000 + 1);
  }
}

void KubernetesDiscovery::Impl::Handle(const PodWatchEvent& event) {
  abandoned_ = false;
  std::vector<PodWatchAction> actions;
  watch_.Handle(event, NowUs(), actions);
  for (const PodWatchAction& action : actions) {
    if (std::holds_alternative<AbandonRequest>(action)) {
      abandoned_ = true;
    } else {
      later_.push_back(action);
    }
  }
}

void KubernetesDiscovery::Impl::Perform(const ListPods& action) {
  std::string path = absl::StrCat(path_, "&limit=", kPageItems);
  if (!action.continue_token.empty()) {
    absl::StrAppend(&path, "&continue=", UrlEscaped(action.continue_token));
  }
  api_.Get(path, kListTimeoutMs,
           {.on_body = [this](std::string_view body) { return TakePage(body); },
            .on_line = nullptr,
            .on_end = [this](const ApiRequest::Outcome& outcome) { EndRequest(outcome); }});
}

void KubernetesDiscovery::Impl::Perform(const WatchPods& action) {
  const std::string path =
      absl::StrCat(path_, "&watch=1&allowWatchBookmarks=true&timeoutSeconds=", kWatchSeconds,
                   "&resourceVersion=", UrlEscaped(action.resource_version));
  api_.Get(path, kWatchTimeoutMs,
           {.on_body = nullptr,
            .on_line = [this](std::string_view line) { return TakeLine(line); },
            .on_end = [this](const ApiRequest::Outcome& outcome) { EndRequest(outcome); }});
}

bool KubernetesDiscovery::Impl::TakePage(std::string_view body) {
  absl::StatusOr<PodPage> page = ParsePodPage(body);
  if (!page.ok()) {
    EndRequest({200, page.status(), 0, ""});
    return false;
  }
  Handle(PodsListed{*std::move(page)});
  return true;
}

bool KubernetesDiscovery::Impl::TakeLine(std::string_view line) {
  absl::StatusOr<PodChange> change = ParsePodChange(line);
  absl::Status status = Failpoint("router.pod_event");
  if (status.ok()) status = change.status();
  if (!status.ok()) {
    EndRequest({200, status, 0, ""});
    return false;
  }
  if (change->type == PodChange::Type::kError) {
    LOG(kInfo) << "the Kubernetes API ends the watch of pods: " << change->error_code << " "
               << change->error_message;
  }
  Handle(PodChanged{*std::move(change)});
  FollowPods();
  return !abandoned_;
}

void KubernetesDiscovery::Impl::EndRequest(const ApiRequest::Outcome& outcome) {
  Handle(ApiRequestEnded{outcome.http_status, outcome.status, outcome.retry_after_us});
  if (watch_.failures() % kFailuresToTell != 1) return;
  std::string what = outcome.status.ok() ? "" : DescribeStatus(outcome.status);
  if (outcome.http_status != 200 && outcome.http_status != 0) {
    what = absl::StrCat("HTTP ", outcome.http_status, " ", ParseApiError(outcome.error_body));
  }
  if (what.empty()) return;  // Ended well, only too soon.
  LOG(kWarning) << "pods of the Kubernetes API: " << what
                << WhatToDo(outcome.http_status, options_.name_space);
}

void KubernetesDiscovery::Impl::FollowPods() {
  if (watch_.version() == followed_version_) return;
  followed_version_ = watch_.version();
  for (const std::string& gone : announcer_.SetPods(watch_.pods(), NowUs())) {
    announcements_.Forget(gone);
  }
  LOG(kInfo) << "the Kubernetes API names " << watch_.pods().size() << " pods, "
             << announcer_.size() << " of them may be workers";
  if (watch_.overfull() && !std::exchange(overfull_told_, true)) {
    LOG(kError) << "more pods match " << options_.selector << " than a router takes workers; the "
                << "rest is left out";
  }
}

void KubernetesDiscovery::Impl::TakeAnswers() {
  std::vector<std::pair<std::string, absl::Status>> answers;
  {
    MutexLock lock(&mutex_);
    answers.swap(answers_);
  }
  for (const auto& [address, status] : answers) {
    announcer_.Answered(address, status, NowUs());
    if (status.ok() || announcer_.failures(address) % kFailuresToTell != 1) continue;
    LOG(kWarning) << "the pod at " << address
                  << " takes no announcement: " << DescribeStatus(status);
  }
}

KubernetesDiscovery::KubernetesDiscovery(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KubernetesDiscovery::~KubernetesDiscovery() = default;

absl::StatusOr<std::unique_ptr<KubernetesDiscovery>> KubernetesDiscovery::Start(
    KubernetesDiscoveryOptions options) {
  BATON_ASSIGN_OR_RETURN(ApiAccess access, AccessOfPod(options.account_dir));
  if (options.name_space.empty()) {
    BATON_ASSIGN_OR_RETURN(options.name_space, ReadAccountFile(options.account_dir, "namespace"));
  }
  LOG(kInfo) << "finding workers among the pods of " << options.name_space << " with "
             << options.selector << " by " << access.base_url;
  return std::unique_ptr<KubernetesDiscovery>(
      new KubernetesDiscovery(std::make_unique<Impl>(std::move(options), std::move(access))));
}

namespace {

constexpr auto kTimeout = std::chrono::seconds(2);

// Alive until its callback has run.
struct Announcement {
  explicit Announcement(rpc::CallTracker& tracker) : context(tracker) {}

  rpc::TrackedContext context;
  std::shared_ptr<v1::Worker::Stub> worker;
  v1::AnnounceResponse response;
};

}  // namespace

Announcements::Announcements(
    int cluster_port, std::string host, std::shared_ptr<const rpc::ClusterSecurity> security,
    std::function<void(const std::string& address, const absl::Status&)> on_answer)
    : security_(std::move(security)), on_answer_(std::move(on_answer)) {
  request_.set_grpc_port(cluster_port);
  request_.set_host(std::move(host));
}

void Announcements::Announce(const std::string& address) {
  if (absl::Status status = Failpoint("router.announce"); !status.ok()) {
    return on_answer_(address, status);
  }
  std::shared_ptr<v1::Worker::Stub>& worker = workers_[address];
  if (worker == nullptr) {
    worker = v1::Worker::NewStub(rpc::OpenChannel(
        address, {.security = security_,
                  .peers = {{rpc::PeerRole::kPrefill, ""}, {rpc::PeerRole::kDecode, ""}}}));
  }
  const auto announcement = std::make_shared<Announcement>(tracker_);
  announcement->worker = worker;
  announcement->context->set_deadline(std::chrono::system_clock::now() + kTimeout);
  worker->async()->Announce(
      &*announcement->context, &request_, &announcement->response,
      [announcement, address, on_answer = on_answer_](const grpc::Status& status) {
        on_answer(address, rpc::FromGrpc(status));
      });
}

void Announcements::Stop() {
  tracker_.CancelAll();
  tracker_.WaitIdle();
  workers_.clear();
}

}  // namespace baton::router
