#include "services/baton/cluster_watch.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/net/host.h"
#include "common/rpc/channel.h"
#include "services/baton/http_get.h"

namespace baton {
namespace {

constexpr int kAskEveryMs = 25;
// One answer; the router is on this machine.
constexpr int kAnswerMs = 1000;
constexpr int kReconnectMs = 100;

}  // namespace

ClusterWatch::ClusterWatch(ClusterWatchOptions options)
    : options_(std::move(options)), progress_("cluster starting", "registered", options_.groups) {
  stub_ = v1::Cluster::NewStub(
      rpc::OpenChannel(net::JoinHostPort(options_.cluster_host, options_.cluster_port),
                       {.max_reconnect_ms = kReconnectMs,
                        .max_receive_bytes = -1,
                        .security = options_.security,
                        .peers = {{rpc::PeerRole::kRouter, ""}}}));
  thread_ = std::thread([this] { Run(); });
}

ClusterWatch::~ClusterWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ClusterWatch::OnIncarnation(const std::string& name, uint64_t incarnation) {
  MutexLock lock(&mutex_);
  incarnations_[name] = incarnation;
}

bool ClusterWatch::ready() const {
  MutexLock lock(&mutex_);
  return ready_;
}

std::string ClusterWatch::waiting_for() const {
  MutexLock lock(&mutex_);
  return waiting_for_;
}

std::vector<v1::ListedWorker> ClusterWatch::workers() const {
  MutexLock lock(&mutex_);
  return workers_;
}

std::vector<std::string> ClusterWatch::TakeNews() {
  MutexLock lock(&mutex_);
  return std::exchange(news_, {});
}

void ClusterWatch::Run() {
  pthread_setname_np(pthread_self(), "baton-watch");
  while (true) {
    const absl::Status status = Ask();
    MutexLock lock(&mutex_);
    ready_ = status.ok();
    waiting_for_ = std::string(status.message());
    if (ready_ || stopping_ ||
        mutex_.AwaitFor(std::chrono::milliseconds(kAskEveryMs),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
      break;
    }
  }
  // An unused connection would keep the router from ending at once.
  stub_.reset();
}

absl::Status ClusterWatch::Ask() {
  std::map<std::string, uint64_t> incarnations;
  {
    MutexLock lock(&mutex_);
    incarnations = incarnations_;
  }
  if (incarnations[kRouterName] == 0) return absl::UnavailableError("the router does not listen");
  BATON_RETURN_IF_ERROR(AskForWorkers(incarnations));
  return AskForReadiness();
}

absl::Status ClusterWatch::AskForWorkers(const std::map<std::string, uint64_t>& incarnations) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kAnswerMs));
  // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
  // while the router does not listen yet, leave it to a poller that wakes every five seconds.
  context.set_wait_for_ready(true);
  v1::ListResponse response;
  if (!stub_->List(&context, {}, &response).ok()) {
    return absl::UnavailableError("the router does not answer");
  }
  const auto state_of = [&](const std::string& name) {
    const auto own = incarnations.find(name);
    const auto listed =
        std::find_if(response.workers().begin(), response.workers().end(), [&](const auto& w) {
          return own != incarnations.end() && w.worker().instance().instance_id() == name &&
                 w.worker().instance().incarnation() == own->second;
        });
    if (listed == response.workers().end()) return StartState::kAbsent;
    return listed->ready() ? StartState::kReady : StartState::kHere;
  };
  if (std::string line = progress_.Note(state_of); !line.empty()) {
    MutexLock lock(&mutex_);
    news_.push_back(std::move(line));
  }
  std::vector<std::string> missing;
  for (const StartingGroup& group : options_.groups) {
    for (const std::string& name : group.names) {
      const StartState state = state_of(name);
      if (state == StartState::kReady) continue;
      missing.push_back(absl::StrCat(
          name, state == StartState::kAbsent ? " has not registered" : " is not ready"));
    }
  }
  if (!missing.empty()) return absl::UnavailableError(absl::StrJoin(missing, ", "));
  MutexLock lock(&mutex_);
  workers_.assign(response.workers().begin(), response.workers().end());
  return absl::OkStatus();
}

absl::Status ClusterWatch::AskForReadiness() const {
  const auto answer = HttpGet({options_.host, options_.http_port, options_.https}, "/readiness");
  if (!answer.ok()) return absl::UnavailableError("the router's HTTP port does not answer");
  if (answer->status == 200) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the router says: ", absl::StripAsciiWhitespace(answer->body)));
}

}  // namespace baton
