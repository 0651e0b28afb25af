#include "services/worker/cluster_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>

#include "common/base/sync.h"
#include "common/rpc/convert.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::worker {
namespace {

constexpr std::chrono::seconds kPatience{30};  // Only a failing test waits that long.
constexpr int64_t kNeverMs = 3'600'000;        // An interval that no test lives to see end.
constexpr uint64_t kRouterIncarnation = 0x77;

// Counts endpoints; addresses named in `unreachable` can't be connected to.
class FakeDataPlane : public DataPlane {
 public:
  const std::string& address() const override { return address_; }
  absl::Status Register(MessageKind, MessageHandler*) override { return absl::OkStatus(); }
  void Unregister(MessageKind) override {}
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
  void Send(PeerId, Outgoing message) override { message.on_sent(absl::OkStatus()); }
  bool Post(std::function<void()>) override { return false; }
  bool PostReserved(std::function<void()>) override { return false; }
  void SetTimer(int64_t, std::function<void(int64_t)>) override {}
  void SetPeerErrorHandler(std::function<void(PeerId, const absl::Status&)>) override {}
  std::string Lanes(PeerId) override { return ""; }
  const DataPlaneCounters& counters() const override { return counters_; }
  void Shutdown() override {}

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
  const std::string address_ = "self";
  Mutex mutex_;
  std::map<PeerId, std::string> open_;
  std::set<std::string> unreachable_;
  PeerId next_ = 1;
  DataPlaneCounters counters_;
};

// A router that says what the test tells it to.
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

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    MutexLock lock(&mutex_);
    if (!refusal_.ok()) return refusal_;
    ++registrations_;
    known_ = true;
    applied_ = 0;
    response->set_heartbeat_interval_ms(interval_ms_);
    response->set_router_incarnation(incarnation_);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(&mutex_);
    if (!known_) return {grpc::StatusCode::NOT_FOUND, "who?"};
    ++heartbeats_;
    if (request->router_incarnation() != incarnation_) {
      return {grpc::StatusCode::NOT_FOUND, "another router's"};
    }
    applied_ = request->view_version();
    ready_ = request->ready();
    response->set_view_version(version_);
    if (applied_ != version_) {
      for (const auto& worker : view_) *response->add_workers() = worker;
    }
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchNotice>* writer) override {
    MutexLock lock(&mutex_);
    ++watches_;
    const int end_at = watch_ends_;
    uint64_t told = version_;
    // Cancellation has no event here, so it is looked for now and then.
    while (watch_ends_ == end_at && !context->IsCancelled()) {
      const auto news = [&] { return watch_ends_ != end_at || version_ != told; };
      if (!mutex_.AwaitFor(std::chrono::milliseconds(10), news) || version_ == told) continue;
      told = version_;
      v1::WatchNotice notice;
      notice.set_view_version(told);
      writer->Write(notice);
    }
    return {grpc::StatusCode::UNAVAILABLE, "the watch breaks"};
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void SetInterval(int64_t interval_ms) {
    MutexLock lock(&mutex_);
    interval_ms_ = interval_ms;
  }
  void BreakWatches() {
    MutexLock lock(&mutex_);
    ++watch_ends_;
  }
  bool AwaitWatches(int count) {
    return Await([this, count] { return watches_ >= count; });
  }
  void SetView(uint64_t version, std::vector<v1::WorkerInfo> view) {
    MutexLock lock(&mutex_);
    version_ = version;
    view_ = std::move(view);
  }
  void Forget() {
    MutexLock lock(&mutex_);
    known_ = false;
  }
  void Refuse(grpc::Status status) {
    MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  bool AwaitApplied(uint64_t version) {
    return Await([this, version] { return known_ && applied_ == version; });
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
  uint64_t applied() {
    MutexLock lock(&mutex_);
    return applied_;
  }
  bool ready() {
    MutexLock lock(&mutex_);
    return ready_;
  }

 private:
  template <typename Predicate>
  bool Await(Predicate predicate) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(kPatience, predicate);
  }

  const uint64_t incarnation_;
  Mutex mutex_;
  grpc::Status refusal_;
  int64_t interval_ms_ = 10;
  int watches_ = 0;
  int watch_ends_ = 0;
  int registrations_ = 0;
  int heartbeats_ = 0;
  bool known_ = false;
  bool ready_ = false;
  uint64_t applied_ = 0;
  uint64_t version_ = 1;
  std::vector<v1::WorkerInfo> view_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::WorkerInfo Worker(const std::string& id, uint64_t incarnation, v1::Role role,
                      const std::string& chain = "") {
  v1::WorkerInfo info;
  *info.mutable_instance() = rpc::ToProto(InstanceRef{id, incarnation});
  info.set_role(role);
  info.set_data_address(id + "/" + std::to_string(incarnation));
  info.set_chain_id(chain);
  *info.mutable_layers() = rpc::ToProto(LayerRange{0, 6});
  return info;
}

const v1::WorkerInfo kDecode = Worker("decode-0", 1, v1::ROLE_DECODE);
const v1::WorkerInfo kStage = Worker("a-0", 2, v1::ROLE_PREFILL, "a");
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
    options.rejoin_grace_ms = rejoin_grace_ms_;
    options.data_plane = &plane_;
    options.status = [this] { return ClusterClientOptions::Status{.ready = ready_, .load = {}}; };
    options.on_view = [this](const std::vector<PeerWorker>& view) {
      MutexLock lock(&mutex_);
      views_.push_back(view);
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

  // Heartbeats by news alone.
  void NoIntervals() {
    interval_ms_ = kNeverMs;
    router_->SetInterval(kNeverMs);
  }

  std::atomic<bool> ready_{true};
  int64_t interval_ms_ = 10;
  int64_t rejoin_grace_ms_ = 60'000;
  FakeDataPlane plane_;
  std::unique_ptr<FakeRouter> router_ = std::make_unique<FakeRouter>();
  Mutex mutex_;
  std::vector<std::string> routers_;  // Empty: `router_` alone.
  std::map<std::string, NameResolver::Addresses> addresses_;
  std::vector<std::vector<PeerWorker>> views_;
  absl::Status rejected_;
  std::unique_ptr<ClusterClient> client_;  // Last: its thread uses the rest.
};

TEST_F(ClusterClientTest, AppliesAViewOnceItsEndpointsStand) {
  router_->SetView(7, {kDecode, kStage, Worker("a-1", 3, v1::ROLE_PREFILL, "a")});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(7));
  EXPECT_TRUE(client_->registered());
  EXPECT_TRUE(router_->ready());
  EXPECT_EQ(plane_.Open(), (Addresses{"a-0/2", "a-1/3"}));
  EXPECT_TRUE(client_->Find({"a-0", 2}).has_value());
  EXPECT_FALSE(client_->Find({"a-0", 3}).has_value()) << "another incarnation";
  EXPECT_EQ(client_->Endpoints(Role::kPrefill).size(), 2u);
  MutexLock lock(&mutex_);
  ASSERT_EQ(views_.size(), 1u);
  EXPECT_EQ(views_[0].size(), 2u) << "without the worker itself";
}

TEST_F(ClusterClientTest, StagesConnectToDecodesAndTheirOwnChain) {
  router_->SetView(2, {kStage, Worker("a-1", 3, v1::ROLE_PREFILL, "a"), kDecode,
                       Worker("b-0", 4, v1::ROLE_PREFILL, "b")});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitApplied(2));
  EXPECT_EQ(plane_.Open(), (Addresses{"a-1/3", "decode-0/1"}));
}

TEST_F(ClusterClientTest, NewIncarnationIsANewEndpoint) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  const auto old_peer = client_->Find({"a-0", 2});
  router_->SetView(3, {kDecode, Worker("a-0", 9, v1::ROLE_PREFILL, "a")});
  ASSERT_TRUE(router_->AwaitApplied(3));
  EXPECT_EQ(plane_.Open(), (Addresses{"a-0/9"}));
  EXPECT_FALSE(client_->Find({"a-0", 2}).has_value());
  EXPECT_NE(client_->Find({"a-0", 9}), old_peer);
}

TEST_F(ClusterClientTest, ANoticeBringsTheViewAndTheReportAtOnce) {
  NoIntervals();
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  ASSERT_TRUE(router_->AwaitWatches(1));
  for (uint64_t version = 3; version < 6; ++version) {
    router_->SetView(version, {kDecode, Worker("a-0", version, v1::ROLE_PREFILL, "a")});
    ASSERT_TRUE(router_->AwaitApplied(version));
    EXPECT_TRUE(client_->Find({"a-0", version}).has_value());
  }
}

TEST_F(ClusterClientTest, ABrokenWatchBringsAHeartbeat) {
  NoIntervals();
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  ASSERT_TRUE(router_->AwaitWatches(1));
  router_->BreakWatches();
  EXPECT_TRUE(router_->AwaitHeartbeats(1));
}

TEST_F(ClusterClientTest, ABrokenWatchIsOpenedAnew) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  for (int watch = 1; watch < 4; ++watch) {
    ASSERT_TRUE(router_->AwaitWatches(watch));
    router_->BreakWatches();
  }
  EXPECT_TRUE(router_->AwaitWatches(4));
}

TEST_F(ClusterClientTest, AChangedStatusIsReportedAtOnce) {
  NoIntervals();
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  ready_ = false;
  client_->ReportSoon();
  EXPECT_TRUE(router_->AwaitReady(false));
}

TEST_F(ClusterClientTest, ARouterThatStartsAnewDisconnectsNobody) {
  router_->SetView(7, {kDecode, kStage, Worker("a-1", 3, v1::ROLE_PREFILL, "a")});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(7));
  const auto stage = client_->Find({"a-0", 2});
  router_->SetView(20, {kDecode, Worker("a-1", 9, v1::ROLE_PREFILL, "a")});
  router_->Forget();
  ASSERT_TRUE(router_->AwaitApplied(20));
  EXPECT_EQ(plane_.Open(), (Addresses{"a-0/2", "a-1/9"})) << "kept, and replaced";
  EXPECT_EQ(client_->Find({"a-0", 2}), stage) << "the endpoint is the same";
  {
    MutexLock lock(&mutex_);
    EXPECT_EQ(views_.back().size(), 2u);
  }
  router_->SetView(21, {kDecode, kStage, Worker("a-1", 9, v1::ROLE_PREFILL, "a")});
  ASSERT_TRUE(router_->AwaitApplied(21));
  EXPECT_EQ(client_->Find({"a-0", 2}), stage);
}

TEST_F(ClusterClientTest, WhoDoesNotComeBackIsGivenUp) {
  rejoin_grace_ms_ = 50;
  router_->SetView(7, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(7));
  router_->SetView(20, {kDecode});
  router_->Forget();
  ASSERT_TRUE(router_->AwaitApplied(20));
  const auto alone = [this] { return !views_.empty() && views_.back().empty(); };
  MutexLock lock(&mutex_);
  EXPECT_TRUE(mutex_.AwaitFor(kPatience, alone));
  EXPECT_EQ(plane_.Open(), Addresses{});
}

TEST_F(ClusterClientTest, ViewWaitsForAnUnreachablePeer) {
  plane_.SetUnreachable({"a-0/2"});
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitHeartbeats(5));
  EXPECT_EQ(router_->applied(), 0u);
  plane_.SetUnreachable({});
  EXPECT_TRUE(router_->AwaitApplied(2));
}

TEST_F(ClusterClientTest, FailedEndpointIsOpenedAnew) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  const auto failed = client_->Find({"a-0", 2});
  client_->OnPeerFailed(*failed);
  ASSERT_TRUE(router_->AwaitHeartbeats(3));
  const auto renewed = client_->Find({"a-0", 2});
  ASSERT_TRUE(renewed.has_value());
  EXPECT_NE(renewed, failed);
  EXPECT_EQ(router_->applied(), 2u);
}

TEST_F(ClusterClientTest, RegistersAgainWhenForgotten) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  router_->Forget();
  ASSERT_TRUE(router_->AwaitRegistrations(2));
  EXPECT_TRUE(router_->AwaitApplied(2));
}

TEST_F(ClusterClientTest, SurvivesTheRouter) {
  router_->SetView(5, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(5));
  const auto peer = client_->Find({"a-0", 2});
  const int port = router_->port();
  router_.reset();
  router_ = std::make_unique<FakeRouter>(port);
  router_->SetView(5, {kDecode, kStage});  // The same version of another life.
  ASSERT_TRUE(router_->AwaitRegistrations(1));
  ASSERT_TRUE(router_->AwaitApplied(5));
  EXPECT_EQ(client_->Find({"a-0", 2}), peer) << "endpoints to peers that live on are kept";
}

TEST_F(ClusterClientTest, RefusalEndsTheClient) {
  router_->Refuse({grpc::StatusCode::FAILED_PRECONDITION, "page size 16, the cluster has 64"});
  Begin(kDecode);
  ASSERT_TRUE(AwaitRejected());
  MutexLock lock(&mutex_);
  EXPECT_TRUE(absl::IsFailedPrecondition(rejected_));
  EXPECT_EQ(rejected_.message(), "page size 16, the cluster has 64");
}

TEST_F(ClusterClientTest, StopsWhileTheRouterIsAway) {
  router_->Refuse({grpc::StatusCode::UNAVAILABLE, "starting"});
  Begin(kDecode);
  client_->Stop();
  client_->Stop();
  EXPECT_FALSE(client_->registered());
}

TEST_F(ClusterClientTest, EveryAddressOfANameIsARouterThatIsFed) {
  FakeRouter other(0, 0x88);
  router_->SetView(2, {kDecode, kStage});
  other.SetView(7, {kDecode, Worker("b-0", 4, v1::ROLE_PREFILL, "b")});
  routers_ = {"router:1"};
  addresses_["router:1"] = std::vector<std::string>{router_->address()};
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  {
    MutexLock lock(&mutex_);
    addresses_["router:1"] = std::vector<std::string>{router_->address(), other.address()};
  }
  ASSERT_TRUE(other.AwaitApplied(7)) << "found when the name is resolved again";
  EXPECT_EQ(plane_.Open(), (Addresses{"a-0/2", "b-0/4"}));
  {
    MutexLock lock(&mutex_);
    addresses_["router:1"] = absl::UnavailableError("DNS does not answer");
  }
  ASSERT_TRUE(other.AwaitHeartbeats(5));
  ASSERT_TRUE(router_->AwaitHeartbeats(5));
  router_.reset();  // One dies; nothing happens to what the other lists.
  ASSERT_TRUE(other.AwaitHeartbeats(5));
  EXPECT_TRUE(client_->Find({"b-0", 4}).has_value());
  EXPECT_TRUE(client_->registered());
}

TEST_F(ClusterClientTest, ARouterThatAnnouncesItselfIsJoined) {
  router_->SetView(2, {kDecode, kStage});
  routers_ = {"nobody:1"};
  addresses_["nobody:1"] = absl::UnavailableError("no such name");
  Begin(kDecode);
  client_->Announce(router_->address());
  EXPECT_TRUE(router_->AwaitApplied(2));
}

TEST_F(ClusterClientTest, ALookupThatHangsDelaysNoStop) {
  routers_ = {"slow:1"};
  addresses_["slow:1"] = std::vector<std::string>{};
  ClusterClientOptions options;
  options.routers = routers_;
  options.self = kDecode;
  options.data_plane = &plane_;
  options.status = [] { return ClusterClientOptions::Status{}; };
  options.on_rejected = [](const absl::Status&) {};
  auto asked = std::make_shared<Notification>();
  auto release = std::make_shared<Notification>();
  auto ended = std::make_shared<Notification>();
  options.lookup = [asked, release, ended](const std::string&) -> NameResolver::Addresses {
    asked->Notify();
    release->WaitForNotification();
    ended->Notify();
    return std::vector<std::string>{};
  };
  client_ = std::make_unique<ClusterClient>(std::move(options));
  client_->Start();
  asked->WaitForNotification();
  client_.reset();
  release->Notify();
  ended->WaitForNotification();
}

}  // namespace
}  // namespace baton::worker
