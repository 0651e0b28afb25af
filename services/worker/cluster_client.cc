#include "services/worker/cluster_client.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/base/stop_signal.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/worker/view_watch.h"

namespace baton::worker {
namespace {

constexpr int64_t kFirstBackoffMs = 50;
constexpr int64_t kMaxBackoffMs = 2000;
// An RPC that takes longer is given up: the router is dead or stopped.
constexpr int64_t kMinRpcTimeoutMs = 1000;
// Heartbeats for news keep so much distance, however fast the cluster changes: joins that come
// together are answered with one view.
constexpr int64_t kNewsGapMs = 10;
// A view of some thousand workers with their fingerprints.
constexpr int kMaxViewBytes = 64 << 20;

absl::StatusOr<PeerWorker> FromProto(const v1::WorkerInfo& info) {
  PeerWorker peer;
  BATON_ASSIGN_OR_RETURN(peer.instance, rpc::FromProto(info.instance(), "workers.instance"));
  BATON_ASSIGN_OR_RETURN(peer.layers, rpc::FromProto(info.layers(), "workers.layers"));
  switch (info.role()) {
    case v1::ROLE_PREFILL:
      peer.role = Role::kPrefill;
      break;
    case v1::ROLE_DECODE:
      peer.role = Role::kDecode;
      break;
    default:
      return InvalidField("workers.role", "neither prefill nor decode");
  }
  peer.grpc_address = info.grpc_address();
  peer.data_address = info.data_address();
  peer.chain_id = info.chain_id();
  peer.pp_rank = info.pp_rank();
  peer.pp_size = info.pp_size();
  return peer;
}

}  // namespace

class ClusterClient::Impl {
 public:
  explicit Impl(ClusterClientOptions options)
      : options_(std::move(options)),
        instance_(options_.self.instance()),
        interval_ms_(options_.heartbeat_interval_ms),
        stub_(v1::Cluster::NewStub(rpc::OpenChannel(
            options_.router_address, {.max_reconnect_ms = static_cast<int>(kMaxBackoffMs),
                                      .max_receive_bytes = kMaxViewBytes}))),
        watch_(std::make_unique<ViewWatch>(*stub_, instance_, [this] { ReportSoon(); })) {
    BATON_CHECK(options_.data_plane != nullptr && options_.status && options_.on_rejected &&
                options_.heartbeat_interval_ms > 0)
        << "incomplete options";
  }

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      if (call_ != nullptr) call_->TryCancel();
    }
    if (thread_.joinable()) thread_.join();
    watch_.reset();
  }

  void ReportSoon() const {
    MutexLock lock(&mutex_);
    news_ = true;
  }

  bool registered() const {
    MutexLock lock(&mutex_);
    return heard_;
  }

  std::optional<PeerId> Find(const InstanceRef& instance) const {
    MutexLock lock(&mutex_);
    const auto found = endpoints_.find(instance);
    if (found == endpoints_.end()) return std::nullopt;
    return found->second.peer;
  }

  std::vector<PeerId> Endpoints(Role role) const {
    MutexLock lock(&mutex_);
    std::vector<PeerId> peers;
    for (const auto& [instance, endpoint] : endpoints_) {
      if (endpoint.role == role) peers.push_back(endpoint.peer);
    }
    return peers;
  }

  void OnPeerFailed(PeerId peer) {
    MutexLock lock(&mutex_);
    for (auto it = endpoints_.begin(); it != endpoints_.end(); ++it) {
      if (it->second.peer != peer) continue;
      endpoints_.erase(it);
      return;
    }
    early_failures_.insert(peer);
  }

 private:
  struct Endpoint {
    PeerId peer = 0;
    Role role = Role::kPrefill;
  };

  void Run();
  // Each is one RPC and what follows from it.
  absl::Status Register();
  absl::Status Heartbeat();

  absl::Status TakeView(const v1::HeartbeatResponse& response);
  bool NeedsEndpoint(const PeerWorker& peer) const;
  // Connects to and disconnects from what the view asks for; false if an endpoint doesn't stand.
  bool ConnectToView();
  void ApplyView();
  // The worker still knows those whom a new router does not list yet.
  void KeepAbsent(const std::vector<PeerWorker>& fresh);

  template <typename Call>
  absl::Status Rpc(const Call& call);
  bool stopping() const {
    MutexLock lock(&mutex_);
    return stopping_;
  }
  void SetHeard(bool heard) {
    MutexLock lock(&mutex_);
    heard_ = heard;
  }
  void Wait(int64_t milliseconds) const {
    MutexLock lock(&mutex_);
    mutex_.AwaitFor(std::chrono::milliseconds(milliseconds),
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
  }
  // Until the next heartbeat is due, or there is news and the last one is long enough ago.
  void WaitForNews() const {
    {
      MutexLock lock(&mutex_);
      const bool news = mutex_.AwaitFor(
          std::chrono::milliseconds(interval_ms_),
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || news_; });
      if (!news) return;
    }
    const int64_t left_us = beat_us_ + kNewsGapMs * 1000 - NowUs();
    if (left_us > 0) Wait(left_us / 1000 + 1);
  }

  const ClusterClientOptions options_;
  const v1::InstanceRef instance_;

  // The client's thread only.
  int64_t interval_ms_;
  const std::unique_ptr<v1::Cluster::Stub> stub_;
  uint64_t router_incarnation_ = 0;  // That the worker is registered with.
  int64_t beat_us_ = 0;              // When the last heartbeat was sent.
  bool registered_ = false;
  std::vector<PeerWorker> view_;  // The last one that came, this worker left out.
  std::vector<PeerWorker> kept_;  // Not in it, and not given up yet: see KeepAbsent.
  int64_t keep_until_us_ = 0;
  bool untold_ = false;                // Of the two, on_view has not heard yet.
  uint64_t view_version_ = 0;          // Its version.
  uint64_t applied_version_ = 0;       // The last version whose endpoints stood; 0: none.
  std::set<InstanceRef> unreachable_;  // Logged already.

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool heard_ ABSL_GUARDED_BY(mutex_) = false;
  mutable bool news_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<InstanceRef, Endpoint> endpoints_ ABSL_GUARDED_BY(mutex_);
  // Peers that failed before Connect's answer was noted; of the current round of connecting.
  std::set<PeerId> early_failures_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ViewWatch> watch_;  // Calls ReportSoon until it is gone.
  std::thread thread_;
};

void ClusterClient::Impl::Run() {
  pthread_setname_np(pthread_self(), "baton-cluster");
  int64_t backoff_ms = kFirstBackoffMs;
  while (!stopping()) {
    const uint64_t applied_before = applied_version_;
    const bool registering = !registered_;
    const absl::Status status = registering ? Register() : Heartbeat();
    if (stopping()) return;
    if (status.ok()) {
      backoff_ms = kFirstBackoffMs;
      // What is new for the router is said at once: a joined worker asks for its view, an applied
      // view makes pairs ready.
      const bool news = registering || applied_version_ != applied_before;
      watch_->Keep(NowUs(), interval_ms_, registering);
      if (!news) WaitForNews();
      continue;
    }
    SetHeard(false);
    if (registering && (absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status))) {
      LOG(kError) << "the router refuses this worker: " << status.message();
      options_.on_rejected(status);
      return;
    }
    if (absl::IsNotFound(status) && !registering) {
      LOG(kWarning) << "the router does not know this worker (any more); registering again";
      registered_ = false;
      continue;
    }
    if (!StopRequested()) {
      LOG(kWarning) << (registering ? "registration at " : "heartbeat to ")
                    << options_.router_address << " failed: " << DescribeStatus(status);
    }
    Wait(backoff_ms);
    backoff_ms = std::min(kMaxBackoffMs, backoff_ms * 2);
  }
}

absl::Status ClusterClient::Impl::Register() {
  v1::RegisterRequest request;
  *request.mutable_worker() = options_.self;
  v1::RegisterResponse response;
  BATON_RETURN_IF_ERROR(Rpc([&](grpc::ClientContext* context) {
    // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
    // while the router does not listen yet, leave it to a poller that wakes every five seconds.
    context->set_wait_for_ready(true);
    return stub_->Register(context, request, &response);
  }));
  registered_ = true;
  router_incarnation_ = response.router_incarnation();
  if (!view_.empty()) keep_until_us_ = NowUs() + options_.rejoin_grace_ms * 1000;
  // The versions of another life of the router mean nothing now.
  view_version_ = 0;
  applied_version_ = 0;
  if (response.heartbeat_interval_ms() > 0) {
    interval_ms_ = std::min(response.heartbeat_interval_ms(), options_.heartbeat_interval_ms);
  }
  SetHeard(true);
  LOG(kInfo) << "registered with the router at " << options_.router_address;
  return absl::OkStatus();
}

absl::Status ClusterClient::Impl::Heartbeat() {
  beat_us_ = NowUs();
  {
    MutexLock lock(&mutex_);
    news_ = false;  // What comes from here on may not be in what is sent now.
  }
  const ClusterClientOptions::Status status = options_.status();
  v1::HeartbeatRequest request;
  *request.mutable_instance() = instance_;
  request.set_router_incarnation(router_incarnation_);
  request.set_view_version(applied_version_);
  request.set_ready(status.ready);
  *request.mutable_load() = status.load;
  v1::HeartbeatResponse response;
  BATON_RETURN_IF_ERROR(Rpc(
      [&](grpc::ClientContext* context) { return stub_->Heartbeat(context, request, &response); }));
  SetHeard(true);
  if (response.view_version() != applied_version_) BATON_RETURN_IF_ERROR(TakeView(response));
  ApplyView();
  return absl::OkStatus();
}

absl::Status ClusterClient::Impl::TakeView(const v1::HeartbeatResponse& response) {
  std::vector<PeerWorker> view;
  for (const v1::WorkerInfo& info : response.workers()) {
    auto peer = FromProto(info);
    // INTERNAL: a router that sends such a view is broken, and waiting may help.
    if (!peer.ok()) return absl::InternalError(peer.status().message());
    if (peer->instance.id == instance_.instance_id()) continue;
    view.push_back(*std::move(peer));
  }
  KeepAbsent(view);
  untold_ = untold_ || view != view_ || response.view_version() != view_version_;
  view_ = std::move(view);
  view_version_ = response.view_version();
  return absl::OkStatus();
}

// A router that has just started hears of the workers one by one. Its first views lack most of
// them, and to disconnect and connect again would break chains and hand-offs that run well.
void ClusterClient::Impl::KeepAbsent(const std::vector<PeerWorker>& fresh) {
  kept_.insert(kept_.end(), view_.begin(), view_.end());
  std::erase_if(kept_, [&](const PeerWorker& known) {
    return std::any_of(fresh.begin(), fresh.end(), [&](const PeerWorker& listed) {
      return listed.instance.id ==
             known.instance.id;  // Listed, or replaced by another incarnation.
    });
  });
  if (NowUs() >= keep_until_us_) kept_.clear();
}

void ClusterClient::Impl::ApplyView() {
  if (!kept_.empty() && NowUs() >= keep_until_us_) {
    kept_.clear();
    untold_ = true;
  }
  const bool complete = ConnectToView();
  if (!complete || !untold_) return;
  untold_ = false;
  applied_version_ = view_version_;
  LOG(kInfo) << "view " << applied_version_ << " of the cluster: " << view_.size()
             << " other workers";
  if (!options_.on_view) return;
  std::vector<PeerWorker> known = view_;
  known.insert(known.end(), kept_.begin(), kept_.end());
  options_.on_view(known);
}

bool ClusterClient::Impl::NeedsEndpoint(const PeerWorker& peer) const {
  if (options_.self.role() == v1::ROLE_DECODE) return peer.role == Role::kPrefill;
  return peer.role == Role::kDecode || peer.chain_id == options_.self.chain_id();
}

bool ClusterClient::Impl::ConnectToView() {
  std::map<InstanceRef, const PeerWorker*> wanted;
  for (const PeerWorker& peer : view_) {
    if (NeedsEndpoint(peer)) wanted.emplace(peer.instance, &peer);
  }
  std::set<InstanceRef> kept;
  for (const PeerWorker& peer : kept_) kept.insert(peer.instance);
  std::vector<PeerId> gone;
  std::vector<const PeerWorker*> missing;
  {
    MutexLock lock(&mutex_);
    early_failures_.clear();
    for (auto it = endpoints_.begin(); it != endpoints_.end();) {
      if (wanted.contains(it->first) || kept.contains(it->first)) {
        ++it;
        continue;
      }
      gone.push_back(it->second.peer);
      it = endpoints_.erase(it);
    }
    for (const auto& [instance, peer] : wanted) {
      if (!endpoints_.contains(instance)) missing.push_back(peer);
    }
  }
  for (const PeerId peer : gone) options_.data_plane->Disconnect(peer);
  // Who leaves connects to nobody: peers that leave as well would refuse it with a lot of noise.
  if (StopRequested()) return missing.empty();
  bool complete = true;
  for (const PeerWorker* peer : missing) {
    const auto id = options_.data_plane->Connect(peer->data_address);
    if (!id.ok()) {
      complete = false;
      if (unreachable_.insert(peer->instance).second) {
        LOG(kWarning) << "no endpoint to " << peer->instance.id << ": "
                      << DescribeStatus(id.status());
      }
      continue;
    }
    unreachable_.erase(peer->instance);
    MutexLock lock(&mutex_);
    if (early_failures_.contains(*id)) {
      complete = false;
      continue;
    }
    endpoints_[peer->instance] = {*id, peer->role};
  }
  std::erase_if(unreachable_, [&](const InstanceRef& ref) { return !wanted.contains(ref); });
  return complete;
}

template <typename Call>
absl::Status ClusterClient::Impl::Rpc(const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(std::max(kMinRpcTimeoutMs, 2 * interval_ms_)));
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("stopping");
    call_ = &context;
  }
  const grpc::Status status = call(&context);
  MutexLock lock(&mutex_);
  call_ = nullptr;
  return rpc::FromGrpc(status);
}

ClusterClient::ClusterClient(ClusterClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ClusterClient::~ClusterClient() { impl_->Stop(); }
void ClusterClient::Start() { impl_->Start(); }
void ClusterClient::Stop() { impl_->Stop(); }
bool ClusterClient::registered() const { return impl_->registered(); }
std::optional<PeerId> ClusterClient::Find(const InstanceRef& instance) const {
  return impl_->Find(instance);
}
std::vector<PeerId> ClusterClient::Endpoints(Role role) const { return impl_->Endpoints(role); }
void ClusterClient::ReportSoon() const { impl_->ReportSoon(); }
void ClusterClient::OnPeerFailed(PeerId peer) { impl_->OnPeerFailed(peer); }

}  // namespace baton::worker
