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

absl::StatusOr<std::vector<PeerWorker>> FromProto(const v1::HeartbeatResponse& answer) {
  std::vector<PeerWorker> members;
  members.reserve(static_cast<size_t>(answer.workers_size()));
  for (const v1::WorkerInfo& worker : answer.workers()) {
    BATON_ASSIGN_OR_RETURN(PeerWorker member, FromProto(worker));
    members.push_back(std::move(member));
  }
  return members;
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
  leases_.clear();  // A call that is held does not end.
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
  if (const auto* granted = std::get_if<LeaseGranted>(&event)) Tell(*granted);
  if (const auto* ended = std::get_if<LeaseEnded>(&event)) Tell(*ended);
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

void ClusterClient::Tell(const LeaseGranted& granted) {
  const auto lease = leases_.find(granted.lease);
  if (lease == leases_.end()) return;
  lease->second.incarnation = granted.router_incarnation;
  const RouterMembership* router = core_.Find(lease->second.router);
  if (router != nullptr) LOG(kInfo) << "registered with the router at " << router->address();
}

// Calls that the core has closed itself are told of where that is done.
void ClusterClient::Tell(const LeaseEnded& ended) {
  const auto lease = leases_.extract(ended.lease);
  if (lease.empty()) return;
  const RouterMembership* router = core_.Find(lease.mapped().router);
  if (router == nullptr || router->left()) return;
  if (router->state() == RouterMembership::State::kAlias) {
    LOG(kDebug) << router->address() << " is another address of a router that is known";
  } else if (absl::IsNotFound(ended.status)) {
    LOG(kWarning) << "a router does not know this worker (any more); registering again";
  } else if (!router->refusal().ok() && router->failures() == 0) {
    // One that is asked again: its first word, and a reminder now and then.
    if (router->refusals() % kFailuresToTell != 1) return;
    LOG(kError) << "the router at " << router->address() << " refuses this worker"
                << (router->refused_for_good() ? ": " : " for now and is asked again: ")
                << router->refusal().message();
  } else {
    TellFailure(lease.mapped(), ended.status);
  }
}

void ClusterClient::TellFailure(const Lease& lease, const absl::Status& status) {
  const RouterMembership* known = core_.Find(lease.router);
  const char* what = lease.incarnation != 0 ? "the lease at " : "registration at ";
  if (known == nullptr || StopRequested() || known->failures() % kFailuresToTell != 1) return;
  LOG(kWarning) << what << known->address() << " failed: " << DescribeStatus(status);
}

void ClusterClient::Perform(const OpenLease& action) {
  std::unique_ptr<RouterRpcs>& rpcs = routers_[action.router];
  if (rpcs == nullptr) rpcs = std::make_unique<RouterRpcs>(action.address, options_.security);
  v1::LeaseRequest request;
  *request.mutable_registration()->mutable_worker() = options_.self;
  request.mutable_registration()->set_call_number(action.lease);
  request.mutable_registration()->mutable_held_by()->Assign(action.held_by.begin(),
                                                            action.held_by.end());
  RouterRpcs::LeaseCall::Callbacks callbacks;
  callbacks.on_response = [this, lease = action.lease](const v1::LeaseResponse& response) {
    return loop_.Post([this, lease, response] { OnResponse(lease, response); });
  };
  callbacks.on_done = [this, lease = action.lease](const absl::Status& status) {
    // A router's end of it is never OK.
    Post(LeaseEnded{lease, status.ok() ? absl::UnavailableError("it ended the call") : status});
  };
  Lease& lease = leases_[action.lease];
  lease.router = action.router;
  lease.call = rpcs->OpenLease(std::move(callbacks));
  lease.call->Write(std::move(request));
}

void ClusterClient::OnResponse(uint64_t lease, const v1::LeaseResponse& response) {
  switch (response.said_case()) {
    case v1::LeaseResponse::kRegistered: {
      const v1::RegisterResponse& registered = response.registered();
      const int64_t interval_ms = std::max<int64_t>(0, registered.heartbeat_interval_ms());
      return events_.Raise(
          LeaseGranted{lease, registered.router_incarnation(), interval_ms * 1000});
    }
    case v1::LeaseResponse::kHeartbeat:
      return OnAnswer(lease, response.heartbeat());
    default:
      return events_.Raise(HeartbeatWanted{lease});
  }
}

void ClusterClient::OnAnswer(uint64_t lease, const v1::HeartbeatResponse& answer) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;  // Closed meanwhile.
  const Lease& beat = found->second;
  // Taken by the router, and the call breaks before its answer is here.
  absl::Status broken = Failpoint(beat.draining ? "worker.drain_heartbeat" : "worker.heartbeat");
  // A router that sends such members is broken, and waiting may help.
  absl::StatusOr<std::vector<PeerWorker>> members = FromProto(answer);
  if (!members.ok()) broken = absl::InternalError(members.status().message());
  if (!broken.ok()) {
    beat.call->Cancel();
    return events_.Raise(LeaseEnded{lease, broken});
  }
  if (!answer.tell_prompts_again()) taken_.Told(beat.incarnation, beat.last_prompt);
  HeartbeatAnswered answered{lease, *std::move(members), beat.draining};
  answered.drain = answer.drain();
  answered.needed_requests = answer.needed_requests();
  const bool busy = beat.busy;
  events_.Raise(std::move(answered));
  if (busy && shared_) PostNews(LoadChanged{});  // It changes while work is done.
}

void ClusterClient::Perform(const SendHeartbeat& action) {
  Lease& lease = leases_.at(action.lease);
  const ClusterClientOptions::Status status = options_.status();
  if (action.leaving) {
    const absl::Status unsent = Failpoint("worker.leave");
    if (!unsent.ok()) {
      lease.call->Cancel();
      return Post(LeaseEnded{action.lease, unsent});
    }
  }
  v1::LeaseRequest message;
  v1::HeartbeatRequest& request = *message.mutable_heartbeat();
  for (const uint64_t incarnation : status.linked) request.add_linked(incarnation);
  request.set_ready(status.readiness.ok());
  request.set_why_not_ready(rpc::Shortened(status.readiness.message()));
  *request.mutable_load() = status.load;
  request.set_draining(status.draining);
  request.set_leaving(action.leaving);
  const TakenPrompts::News news = taken_.Untold(lease.incarnation);
  for (const TakenPrompts::Keys& keys : news.prompts) {
    request.add_taken_prompts()->mutable_prefix_keys()->Assign(keys.begin(), keys.end());
  }
  lease.draining = status.draining;
  lease.busy = status.load.running_requests() + status.load.queued_requests() > 0;
  lease.last_prompt = news.last;
  if (options_.security != nullptr) options_.security->LookAtFiles();
  lease.call->Write(std::move(message));
}

void ClusterClient::Perform(const CloseLease& action) {
  const auto lease = leases_.find(action.lease);
  if (lease == leases_.end()) return;
  TellFailure(lease->second, absl::DeadlineExceededError("the router did not answer in time"));
  if (action.left_to_router) return;
  lease->second.call->Cancel();
  leases_.erase(lease);
}

void ClusterClient::Perform(const ForgetRouter& action) {
  LOG(kInfo) << "the router at " << action.address << " is forgotten";
  std::erase_if(leases_, [&](const auto& lease) { return lease.second.router == action.router; });
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
