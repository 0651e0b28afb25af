#include "services/worker/cluster_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

// One in this many failures or refusals of a router is logged.
constexpr int kFailuresToTell = 30;
// Peers without an endpoint that are remembered as logged.
constexpr size_t kMostUnreachable = 1000;

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
  peer.decode_id = info.decode_id();
  peer.pp_rank = info.pp_rank();
  peer.pp_size = info.pp_size();
  peer.decodes = info.decodes();
  if (info.has_tensor_rank()) {
    BATON_ASSIGN_OR_RETURN(peer.tensor_rank,
                           rpc::FromProto(info.tensor_rank(), "workers.tensor_rank"));
  }
  return peer;
}

HeartbeatAnswered Answer(uint64_t router, const absl::Status& status,
                         const v1::HeartbeatResponse& response) {
  HeartbeatAnswered answer{router, status, response.view_version(), {}};
  answer.drain = status.ok() && response.drain();
  answer.needed_requests = response.needed_requests();
  answer.members.reserve(static_cast<size_t>(response.workers_size()));
  for (const v1::WorkerInfo& worker : response.workers()) {
    auto peer = FromProto(worker);
    if (!peer.ok()) {
      // A router that sends such members is broken, and waiting may help.
      answer.status = absl::InternalError(peer.status().message());
      break;
    }
    answer.members.push_back(*std::move(peer));
  }
  return answer;
}

MembershipOptions CoreOptions(const ClusterClientOptions& options) {
  MembershipOptions core;
  core.self.instance = {options.self.instance().instance_id(),
                        options.self.instance().incarnation()};
  core.self.role = options.self.role() == v1::ROLE_DECODE ? Role::kDecode : Role::kPrefill;
  core.self.chain_id = options.self.chain_id();
  core.self.decode_id = options.self.decode_id();
  core.self.decodes = options.self.decodes();
  core.self.pp_rank = options.self.pp_rank();
  core.self.pp_size = std::max(1, options.self.pp_size());
  for (const std::string& router : options.routers) {
    (net::IsNumericHostPort(router) ? core.router_addresses : core.router_names).push_back(router);
  }
  core.times.heartbeat_us = options.heartbeat_interval_ms * 1000;
  core.times.grace_us = options.forget_router_ms * 1000;
  core.resolve_us = options.resolve_interval_ms * 1000;
  return core;
}

}  // namespace

ClusterClient::ClusterClient(ClusterClientOptions options)
    : options_(std::move(options)),
      core_(CoreOptions(options_), NowUs()),
      unregistered_(core_.unregistered()) {
  BATON_CHECK(options_.data_plane != nullptr && options_.status && options_.on_rejected &&
              options_.heartbeat_interval_ms > 0)
      << "incomplete options";
  loop_.SetWakeHandler([this](int64_t now_us) {
    if (core_.NextDeadlineUs(now_us) <= now_us) events_.Raise(MembershipTick{});
    return core_.NextDeadlineUs(NowUs());
  });
}

void ClusterClient::Start() {
  Post(MembershipTick{});
  loop_.Start();
}

void ClusterClient::Stop() {
  loop_.Stop();
  routers_.clear();
}

void ClusterClient::Post(MembershipEvent event) const {
  const auto raise = [this, event = std::move(event)] { events_.Raise(event); };
  if (!loop_.PostCompletion(raise)) {
    LOG(kDebug) << "an event of the membership comes after the end";
  }
}

void ClusterClient::PostNews(MembershipEvent event) const {
  if (!loop_.Post([this, event = std::move(event)] { events_.Raise(event); })) {
    LOG(kDebug) << "news of the membership is lost";
  }
}

void ClusterClient::ReportPrompt(uint64_t router, TakenPrompts::Keys prefix_keys) const {
  taken_.Add(router, std::move(prefix_keys));
  if (shared_) PostNews(LoadChanged{});
}

std::string ClusterClient::WhyNotRegistered() const {
  MutexLock lock(&mutex_);
  if (!unregistered_.has_value()) return "";
  return absl::StrCat(unregistered_->why, " (for ", (NowUs() - unregistered_->since_us) / 1'000'000,
                      " s)");
}

DrainNews ClusterClient::drain_news() const {
  MutexLock lock(&mutex_);
  return drain_news_;
}

void ClusterClient::Leave(int64_t limit_ms) {
  Post(Leaves{});
  loop_.Await([this] { return core_.left(); }, limit_ms);
}

std::optional<PeerId> ClusterClient::Find(const InstanceRef& instance) const {
  MutexLock lock(&mutex_);
  const auto found = endpoints_.find(instance);
  if (found == endpoints_.end()) return std::nullopt;
  return found->second.endpoint;
}

bool ClusterClient::Want(const std::vector<InstanceRef>& peers) const {
  PeersWanted wanted;
  bool opening = false;
  {
    MutexLock lock(&mutex_);
    for (const InstanceRef& peer : peers) {
      if (endpoints_.contains(peer)) continue;
      const auto refused = refused_until_us_.find(peer);
      if (refused != refused_until_us_.end() && NowUs() < refused->second) continue;
      opening = true;
      if (opening_.insert(peer).second) wanted.peers.push_back(peer);
    }
  }
  if (!wanted.peers.empty()) Post(std::move(wanted));
  return opening;
}

std::vector<PeerId> ClusterClient::Endpoints(Role role) const {
  MutexLock lock(&mutex_);
  std::vector<PeerId> peers;
  for (const auto& [instance, endpoint] : endpoints_) {
    if (endpoint.role == role) peers.push_back(endpoint.endpoint);
  }
  return peers;
}

void ClusterClient::HandleOne(const MembershipEvent& event) {
  std::vector<MembershipAction> actions;
  core_.Handle(event, NowUs(), actions);
  registered_ = core_.registered();
  shared_ = core_.routers_joined() > 1;
  {
    MutexLock lock(&mutex_);
    drain_news_ = core_.drain_news();
    unregistered_ = core_.unregistered();
  }
  const int refusing = core_.routers_refusing();
  if (std::exchange(refusing_, refusing) != refusing && options_.on_refused) {
    options_.on_refused(refusing);
  }
  if (const auto* answer = std::get_if<RegisterAnswered>(&event)) Tell(*answer);
  if (const auto* answer = std::get_if<HeartbeatAnswered>(&event)) {
    if (absl::IsNotFound(answer->status)) {
      LOG(kWarning) << "a router does not know this worker (any more); registering again";
    } else if (!answer->status.ok()) {
      TellFailure(answer->router, "heartbeat to ", answer->status);
    }
  }
  if (const auto* resolved = std::get_if<RouterNameResolved>(&event)) {
    if (!resolved->addresses.ok() && !StopRequested()) {
      LOG(kWarning) << "the router's name " << resolved->name
                    << " is not resolved: " << DescribeStatus(resolved->addresses.status());
    }
  }
  for (const MembershipAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

void ClusterClient::Tell(const RegisterAnswered& answer) {
  const RouterMembership* router = core_.Find(answer.router);
  if (router == nullptr) return;
  if (router->state() == RouterMembership::State::kMember) {
    LOG(kInfo) << "registered with the router at " << router->address();
  } else if (answer.status.ok()) {
    LOG(kDebug) << router->address() << " is another address of a router that is known";
  } else if (!router->refusal().ok()) {
    // One that is asked again: its first word, and a reminder now and then.
    if (router->refusals() % kFailuresToTell != 1) return;
    LOG(kError) << "the router at " << router->address() << " refuses this worker"
                << (router->refused_for_good() ? ": " : " for now and is asked again: ")
                << router->refusal().message();
  } else {
    TellFailure(answer.router, "registration at ", answer.status);
  }
}

void ClusterClient::TellFailure(uint64_t router, const char* what, const absl::Status& status) {
  const RouterMembership* known = core_.Find(router);
  if (known == nullptr || StopRequested() || known->failures() % kFailuresToTell != 1) return;
  LOG(kWarning) << what << known->address() << " failed: " << DescribeStatus(status);
}

void ClusterClient::Perform(const SendRegister& action) {
  std::unique_ptr<RouterRpcs>& rpcs = routers_[action.router];
  if (rpcs == nullptr) rpcs = std::make_unique<RouterRpcs>(action.address, options_.security);
  v1::RegisterRequest request;
  *request.mutable_worker() = options_.self;
  rpcs->Register(
      std::move(request), action.timeout_us / 1000,
      [this, router = action.router](const absl::Status& status,
                                     const v1::RegisterResponse& response) {
        Post(RegisterAnswered{router, status, response.router_incarnation(),
                              std::max<int64_t>(0, response.heartbeat_interval_ms()) * 1000});
      });
}

void ClusterClient::Perform(const SendHeartbeat& action) {
  const ClusterClientOptions::Status status = options_.status();
  v1::HeartbeatRequest request;
  *request.mutable_instance() = options_.self.instance();
  request.set_router_incarnation(action.router_incarnation);
  request.set_view_version(action.view_version);
  for (const uint64_t incarnation : status.linked) request.add_linked(incarnation);
  request.set_ready(status.readiness.ok());
  request.set_why_not_ready(rpc::Shortened(status.readiness.message()));
  *request.mutable_load() = status.load;
  request.set_draining(status.draining);
  request.set_leaving(action.leaving);
  if (action.leaving) {
    const absl::Status unsent = Failpoint("worker.leave");
    if (!unsent.ok()) return Post(Answer(action.router, unsent, {}));
  }
  const TakenPrompts::News news = taken_.Untold(action.router_incarnation);
  for (const TakenPrompts::Keys& keys : news.prompts) {
    request.add_taken_prompts()->mutable_prefix_keys()->Assign(keys.begin(), keys.end());
  }
  const bool busy = status.load.running_requests() + status.load.queued_requests() > 0;
  const auto on_answer = [this, router = action.router, draining = status.draining, busy,
                          incarnation = action.router_incarnation, last = news.last](
                             absl::Status outcome, const v1::HeartbeatResponse& response) {
    // Taken by the router, and its answer is lost.
    const absl::Status lost = Failpoint(draining ? "worker.drain_heartbeat" : "worker.heartbeat");
    if (!lost.ok()) outcome = lost;
    if (outcome.ok() && !response.tell_prompts_again()) taken_.Told(incarnation, last);
    HeartbeatAnswered answer = Answer(router, outcome, response);
    answer.draining = draining;
    Post(std::move(answer));
    if (busy && shared_) PostNews(LoadChanged{});  // It changes while work is done.
  };
  routers_.at(action.router)->Heartbeat(std::move(request), action.timeout_us / 1000, on_answer);
}

void ClusterClient::Perform(const OpenWatch& action) {
  routers_.at(action.router)
      ->Watch(
          options_.self.instance(),
          [this, router = action.router] { PostNews(WatchNoticed{router}); },
          [this, router = action.router] { Post(WatchEnded{router}); });
}

void ClusterClient::Perform(const ForgetRouter& action) {
  LOG(kInfo) << "the router at " << action.address << " is forgotten";
  routers_.erase(action.router);
}

void ClusterClient::Perform(const LookUpPeer& action) {
  v1::FindRequest request;
  *request.mutable_instance() = rpc::ToProto(action.peer);
  routers_.at(action.router)
      ->Find(
          std::move(request), action.timeout_us / 1000,
          [this, router = action.router, peer = action.peer](absl::Status status,
                                                             const v1::FindResponse& response) {
            if (status.ok()) status = Failpoint("worker.find");
            Post(PeerLookedUp{router, peer, status.ok() ? FromProto(response.worker()) : status});
          });
}

void ClusterClient::Perform(const ConnectPeers& action) {
  PeersConnected answer;
  for (const PeerWorker& peer : action.peers) {
    const absl::StatusOr<PeerId> id = options_.data_plane->Connect(peer.data_address);
    if (id.ok()) {
      unreachable_.erase(peer.instance);
      answer.standing.push_back({peer, *id});
      continue;
    }
    answer.failed.push_back(peer);
    if (unreachable_.size() >= kMostUnreachable) unreachable_.clear();
    if (!unreachable_.insert(peer.instance).second || StopRequested()) continue;
    LOG(kWarning) << "no endpoint to " << peer.instance.id << ": " << DescribeStatus(id.status());
  }
  events_.Raise(std::move(answer));
}

void ClusterClient::Perform(const PeerStands& action) {
  {
    MutexLock lock(&mutex_);
    endpoints_[action.peer] = action.endpoint;
    opening_.erase(action.peer);
    refused_until_us_.erase(action.peer);
  }
  if (options_.on_endpoints) options_.on_endpoints();
}

void ClusterClient::Perform(const PeerUnreachable& action) {
  LOG(kDebug) << action.peer.id << " can't be reached at the moment";
  {
    MutexLock lock(&mutex_);
    opening_.erase(action.peer);
    const int64_t now_us = NowUs();
    std::erase_if(refused_until_us_,
                  [now_us](const auto& entry) { return entry.second <= now_us; });
    refused_until_us_[action.peer] = now_us + options_.heartbeat_interval_ms * 1000;
  }
  if (options_.on_endpoints) options_.on_endpoints();
}

void ClusterClient::Perform(const PeerLost& action) {
  {
    MutexLock lock(&mutex_);
    endpoints_.erase(action.peer);
  }
  if (options_.on_endpoints) options_.on_endpoints();
}

void ClusterClient::Perform(const TellPeers& action) {
  LOG(kInfo) << action.peers.size() << " other members of this chain or decode service are here";
  if (options_.on_members) options_.on_members(action.peers);
}

void ClusterClient::Perform(const TooManyRouters& action) {
  LOG(kError) << "the router at " << action.address << " is left out: a worker joins at most "
              << kMaxRouters << " routers";
}

}  // namespace baton::worker
