// What the tests of the cluster client share: a data plane that counts endpoints, a router that
// says what the test tells it to, and a client between them.
#ifndef SERVICES_WORKER_CLUSTER_CLIENT_FIXTURE_H_
#define SERVICES_WORKER_CLUSTER_CLIENT_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/rpc/convert.h"
#include "common/transport/testing/stub_data_plane.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/worker/cluster_client.h"

namespace baton::worker {

inline constexpr std::chrono::seconds kPatience{30};  // Only a failing test waits that long.
inline constexpr int64_t kNeverMs = 3'600'000;        // An interval that no test lives to see end.
inline constexpr uint64_t kRouterIncarnation = 0x77;

// Counts endpoints; addresses named in `unreachable` can't be connected to.
class FakeDataPlane final : public StubDataPlane {
 public:
  absl::StatusOr<PeerId> Connect(std::string_view address) override {
    MutexLock lock(&mutex_);
    if (unreachable_.contains(std::string(address))) return absl::UnavailableError("no route");
    open_[next_] = std::string(address);
    return next_++;
  }
  void Disconnect(PeerId peer) override {
    MutexLock lock(&mutex_);
    open_.erase(peer);
  }

  std::multiset<std::string> Open() {
    MutexLock lock(&mutex_);
    std::multiset<std::string> addresses;
    for (const auto& [peer, address] : open_) addresses.insert(address);
    return addresses;
  }
  void SetUnreachable(std::set<std::string> addresses) {
    MutexLock lock(&mutex_);
    unreachable_ = std::move(addresses);
  }

 private:
  Mutex mutex_;
  std::map<PeerId, std::string> open_;
  std::set<std::string> unreachable_;
  PeerId next_ = 1;
};

// A router with scripted answers.
class FakeRouter final : public v1::Cluster::Service {
 public:
  explicit FakeRouter(int port = 0, uint64_t incarnation = kRouterIncarnation)
      : incarnation_(incarnation) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }

  using LeaseStream = grpc::ServerReaderWriter<v1::LeaseResponse, v1::LeaseRequest>;
  grpc::Status Lease(grpc::ServerContext* context, LeaseStream* stream) override {
    v1::LeaseRequest request;
    v1::LeaseResponse response;
    int end_at = 0;  // As it is before anybody can know of the call.
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;
    {
      MutexLock lock(&mutex_);
      if (!refusal_.ok()) return refusal_;
      ++registrations_;
      known_ = true;
      had_ = told_ = 0;
      end_at = lease_ends_;
      response.mutable_registered()->set_heartbeat_interval_ms(interval_ms_);
      response.mutable_registered()->set_router_incarnation(incarnation_);
    }
    stream->Write(response);
    bool over = false;
    std::thread asker([&] { Ask(*context, *stream, end_at, over); });
    const grpc::Status end = Hear(*stream);
    {
      MutexLock lock(&mutex_);
      over = true;
    }
    asker.join();
    return end;
  }
  grpc::Status Find(grpc::ServerContext*, const v1::FindRequest* request,
                    v1::FindResponse* response) override {
    MutexLock lock(&mutex_);
    ++lookups_;
    for (const auto& worker : others_) {
      if (worker.instance().SerializeAsString() != request->instance().SerializeAsString())
        continue;
      *response->mutable_worker() = worker;
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::NOT_FOUND, "who?"};
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void SetInterval(int64_t interval_ms) {
    MutexLock lock(&mutex_);
    interval_ms_ = interval_ms;
  }
  void BreakLeases() {
    MutexLock lock(&mutex_);
    ++lease_ends_;
  }
  // Calls that have brought a heartbeat.
  bool AwaitLeases(int count) {
    return Await([this, count] { return leases_ >= count; });
  }
  // Of the worker's chain or decode service.
  void SetView(uint64_t version, std::vector<v1::WorkerInfo> view) {
    MutexLock lock(&mutex_);
    version_ = version;
    view_ = std::move(view);
  }
  // Who is found when it is asked for.
  void SetOthers(std::vector<v1::WorkerInfo> others) {
    MutexLock lock(&mutex_);
    others_ = std::move(others);
  }
  void Forget() {
    MutexLock lock(&mutex_);
    known_ = false;
  }
  void StartAnew() {  // In another life.
    MutexLock lock(&mutex_);
    known_ = false;
    ++incarnation_;
  }
  void Refuse(grpc::Status status) {
    MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  // The worker has this version.
  bool AwaitHad(uint64_t version) {
    return Await([this, version] { return known_ && had_ == version; });
  }
  bool AwaitLinked(const std::vector<uint64_t>& incarnations) {
    return Await([&] { return known_ && linked_ == incarnations; });
  }
  // What all heartbeats have told of prompts.
  void TakePrompts(bool takes) {
    MutexLock lock(&mutex_);
    takes_prompts_ = takes;
  }
  std::vector<std::vector<uint64_t>> Taken() {
    MutexLock lock(&mutex_);
    return taken_;
  }
  bool AwaitReady(bool ready) {
    return Await([this, ready] { return ready_ == ready; });
  }
  bool AwaitRegistrations(int count) {
    return Await([this, count] { return registrations_ >= count && known_; });
  }
  bool AwaitHeartbeats(int more) {
    int target = 0;
    {
      MutexLock lock(&mutex_);
      target = heartbeats_ + more;
    }
    return Await([this, target] { return heartbeats_ >= target; });
  }
  int lookups() {
    MutexLock lock(&mutex_);
    return lookups_;
  }
  bool ready() {
    MutexLock lock(&mutex_);
    return ready_;
  }
  std::string why_not_ready() {
    MutexLock lock(&mutex_);
    return why_not_ready_;
  }

 private:
  template <typename Predicate>
  bool Await(Predicate predicate) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(kPatience, predicate);
  }

  // Answers heartbeats until the call is over.
  grpc::Status Hear(LeaseStream& stream) {
    uint64_t life = 0;
    v1::LeaseRequest request;
    while (stream.Read(&request)) {
      v1::LeaseResponse response;
      {
        MutexLock lock(&mutex_);
        ++heartbeats_;
        if (life == 0) ++leases_;
        if (!known_ || (life != 0 && life != incarnation_)) {
          return {grpc::StatusCode::NOT_FOUND, "who?"};
        }
        life = incarnation_;
        Answer(request.heartbeat(), *response.mutable_heartbeat());
      }
      MutexLock lock(&write_mutex_);
      stream.Write(response);
    }
    return {grpc::StatusCode::UNAVAILABLE, "the call breaks"};
  }
  void Answer(const v1::HeartbeatRequest& beat, v1::HeartbeatResponse& answer) {
    had_ = told_;  // It is through with the answer before.
    ready_ = beat.ready();
    why_not_ready_ = beat.why_not_ready();
    linked_ = {beat.linked().begin(), beat.linked().end()};
    if (takes_prompts_) {
      for (const auto& prompt : beat.taken_prompts()) {
        taken_.emplace_back(prompt.prefix_keys().begin(), prompt.prefix_keys().end());
      }
    }
    answer.set_tell_prompts_again(!takes_prompts_);
    if (std::exchange(told_, version_) == version_) return;
    for (const auto& worker : view_) *answer.add_workers() = worker;
  }
  // Asks for a heartbeat whenever there is another list; breaks the call when it is told to.
  void Ask(grpc::ServerContext& context, LeaseStream& stream, int end_at, const bool& over) {
    MutexLock lock(&mutex_);
    uint64_t asked = told_;
    while (!over && lease_ends_ == end_at) {
      const auto news = [&] { return lease_ends_ != end_at || version_ != asked; };
      // The end of a call is no event here, so it is looked for now and then.
      if (!mutex_.AwaitFor(std::chrono::milliseconds(10), news) || version_ == asked) continue;
      asked = version_;
      MutexLock write_lock(&write_mutex_);
      stream.Write({});
    }
    if (!over) context.TryCancel();
  }

  Mutex mutex_;
  Mutex write_mutex_;  // Taken after the other, if both are.
  uint64_t incarnation_;
  grpc::Status refusal_;
  int64_t interval_ms_ = 10;
  int leases_ = 0;
  int lease_ends_ = 0;
  int registrations_ = 0;
  int heartbeats_ = 0;
  bool known_ = false;
  bool ready_ = false;
  std::string why_not_ready_;
  uint64_t told_ = 0;  // Versions: of the list that the call has told last,
  uint64_t had_ = 0;   // and that the worker is known to have had.
  int lookups_ = 0;
  std::vector<uint64_t> linked_;
  bool takes_prompts_ = true;
  std::vector<std::vector<uint64_t>> taken_;
  std::vector<v1::WorkerInfo> others_;
  uint64_t version_ = 1;
  std::vector<v1::WorkerInfo> view_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

inline v1::WorkerInfo Worker(const std::string& id, uint64_t incarnation, v1::Role role,
                             const std::string& chain = "") {
  v1::WorkerInfo info;
  *info.mutable_instance() = rpc::ToProto(InstanceRef{id, incarnation});
  info.set_role(role);
  info.set_data_address(id + "/" + std::to_string(incarnation));
  info.set_chain_id(chain);
  *info.mutable_layers() = rpc::ToProto(LayerRange{0, 6});
  return info;
}

inline const v1::WorkerInfo kDecode = Worker("decode-0", 1, v1::ROLE_DECODE);
inline const v1::WorkerInfo kStage = Worker("a-0", 2, v1::ROLE_PREFILL, "a");
using Addresses = std::multiset<std::string>;

class ClusterClientTest : public testing::Test {
 protected:
  void Begin(const v1::WorkerInfo& self) {
    ClusterClientOptions options;
    options.routers = routers_.empty() ? std::vector<std::string>{router_->address()} : routers_;
    options.lookup = [this](const std::string& name) {
      MutexLock lock(&mutex_);
      return addresses_.at(name);
    };
    options.resolve_interval_ms = 10;
    options.self = self;
    options.heartbeat_interval_ms = interval_ms_;
    options.data_plane = &plane_;
    options.status = [this] {
      ClusterClientOptions::Status status;
      if (!ready_) status.readiness = absl::UnavailableError("its links are down");
      status.linked = {2, 3};
      return status;
    };
    options.on_members = [this](const std::vector<PeerWorker>& members) {
      MutexLock lock(&mutex_);
      members_.push_back(members);
    };
    options.on_endpoints = [this] {
      MutexLock lock(&mutex_);
      ++endpoint_changes_;
    };
    options.on_refused = [this](int routers) {
      MutexLock lock(&mutex_);
      refusing_ = routers;
    };
    options.on_rejected = [this](const absl::Status& status) {
      MutexLock lock(&mutex_);
      rejected_ = status;
    };
    client_ = std::make_unique<ClusterClient>(std::move(options));
    client_->Start();
  }
  bool AwaitRejected() {
    MutexLock lock(&mutex_);
    const auto predicate = [this] { return !rejected_.ok(); };
    return mutex_.AwaitFor(kPatience, predicate);
  }

  bool AwaitRefusing(int routers) {
    MutexLock lock(&mutex_);
    const auto predicate = [this, routers] { return refusing_ == routers; };
    return mutex_.AwaitFor(kPatience, predicate);
  }

  // Until it is found or not.
  std::optional<PeerId> Reach(const InstanceRef& peer) {
    while (client_->Want({peer})) {
      MutexLock lock(&mutex_);
      const int before = endpoint_changes_;
      const auto changed = [this, before] { return endpoint_changes_ != before; };
      (void)mutex_.AwaitFor(std::chrono::milliseconds(20), changed);
    }
    return client_->Find(peer);
  }
  bool AwaitMembers(size_t count) {
    MutexLock lock(&mutex_);
    const auto predicate = [this, count] {
      return !members_.empty() && members_.back().size() == count;
    };
    return mutex_.AwaitFor(kPatience, predicate);
  }

  // Heartbeats by news alone.
  void NoIntervals() {
    interval_ms_ = kNeverMs;
    router_->SetInterval(kNeverMs);
  }

  std::atomic<bool> ready_{true};
  int64_t interval_ms_ = 10;
  FakeDataPlane plane_;
  std::unique_ptr<FakeRouter> router_ = std::make_unique<FakeRouter>();
  Mutex mutex_;
  std::vector<std::string> routers_;  // Empty: `router_` alone.
  std::map<std::string, NameResolver::Addresses> addresses_;
  std::vector<std::vector<PeerWorker>> members_;
  int endpoint_changes_ = 0;
  absl::Status rejected_;
  int refusing_ = 0;                       // Routers.
  std::unique_ptr<ClusterClient> client_;  // Last: its thread uses the rest.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CLUSTER_CLIENT_FIXTURE_H_
