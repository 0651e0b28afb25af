#include "services/worker/cluster_client.h"

#include <gtest/gtest.h>

#include <memory>

#include "services/worker/cluster_client_fixture.h"

namespace baton::worker {
namespace {

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

TEST_F(ClusterClientTest, KnowsWhichProtocolAConnectedPeerSpeaks) {
  v1::WorkerInfo stage = kStage;
  stage.mutable_fingerprint()->set_protocol_version(kProtocolVersion + 1);
  router_->SetView(2, {kDecode, stage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  EXPECT_EQ(client_->ProtocolOf({"a-0", 2}), kProtocolVersion + 1);
  EXPECT_EQ(client_->ProtocolOf({"a-0", 3}), kOldestProtocolVersion) << "another incarnation";
}

TEST_F(ClusterClientTest, ARankHearsOfTheOthersOfItsDecodeService) {
  const auto rank = [](const std::string& id, int of_two) {
    v1::WorkerInfo info = Worker(id, 1, v1::ROLE_DECODE);
    info.mutable_tensor_rank()->set_rank(of_two);
    info.mutable_tensor_rank()->set_size(2);
    info.set_decode_id("7");
    return info;
  };
  router_->SetView(2, {rank("d-0", 0), rank("d-1", 1)});
  Begin(rank("d-0", 0));
  ASSERT_TRUE(router_->AwaitApplied(2));
  EXPECT_EQ(plane_.Open(), Addresses{}) << "no tensors pass between them by this way";
  MutexLock lock(&mutex_);
  ASSERT_EQ(views_.size(), 1u);
  ASSERT_EQ(views_[0].size(), 1u);
  EXPECT_EQ(views_[0][0].decode_id, "7");
  EXPECT_EQ(views_[0][0].tensor_rank, (TensorRank{1, 2}));
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
  router_->StartAnew();
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
  router_->StartAnew();
  ASSERT_TRUE(router_->AwaitApplied(20));
  const auto alone = [this] { return !views_.empty() && views_.back().empty(); };
  MutexLock lock(&mutex_);
  EXPECT_TRUE(mutex_.AwaitFor(kPatience, alone));
  EXPECT_EQ(plane_.Open(), Addresses{});
}

TEST_F(ClusterClientTest, AnUnreachablePeerIsNamedAndHoldsUpNobody) {
  plane_.SetUnreachable({"a-0/2"});
  router_->SetView(2, {kDecode, kStage, Worker("a-1", 3, v1::ROLE_PREFILL, "a")});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitUnconnected(2, {2}));
  EXPECT_TRUE(client_->Find({"a-1", 3}).has_value());
  plane_.SetUnreachable({});
  EXPECT_TRUE(router_->AwaitUnconnected(2, {}));
}

TEST_F(ClusterClientTest, AFailedEndpointIsWithdrawnAtOnceAndOpenedAnew) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  const auto failed = client_->Find({"a-0", 2});
  plane_.SetUnreachable({"a-0/2"});
  client_->OnPeerFailed(*failed);
  ASSERT_TRUE(router_->AwaitUnconnected(2, {2}));
  plane_.SetUnreachable({});
  ASSERT_TRUE(router_->AwaitUnconnected(2, {}));
  const auto renewed = client_->Find({"a-0", 2});
  ASSERT_TRUE(renewed.has_value());
  EXPECT_NE(renewed, failed);
}

TEST_F(ClusterClientTest, RegistersAgainWhenForgotten) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(2));
  const auto before = client_->Find({"a-0", 2});
  router_->Forget();
  ASSERT_TRUE(router_->AwaitRegistrations(2));
  EXPECT_TRUE(router_->AwaitApplied(2));
  // It was dead to its peers.
  EXPECT_TRUE(client_->Find({"a-0", 2}).has_value());
  EXPECT_NE(client_->Find({"a-0", 2}), before);
}

TEST_F(ClusterClientTest, ConnectsAnewToWhoWasGivenUpBetweenTwoViews) {
  router_->SetView(5, {kDecode, kStage}, {2, 3});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(5));
  const auto before = client_->Find({"a-0", 2});
  router_->SetView(7, {kDecode, kStage}, {2, 7});
  ASSERT_TRUE(router_->AwaitApplied(7));
  EXPECT_TRUE(client_->Find({"a-0", 2}).has_value());
  EXPECT_NE(client_->Find({"a-0", 2}), before);
}

TEST_F(ClusterClientTest, SurvivesTheRouter) {
  router_->SetView(5, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitApplied(5));
  const auto peer = client_->Find({"a-0", 2});
  const int port = router_->port();
  router_.reset();
  router_ = std::make_unique<FakeRouter>(port, kRouterIncarnation + 1);
  router_->SetView(5, {kDecode, kStage});  // The same version of another life.
  ASSERT_TRUE(router_->AwaitRegistrations(1));
  ASSERT_TRUE(router_->AwaitApplied(5));
  EXPECT_EQ(client_->Find({"a-0", 2}), peer) << "endpoints to peers that live on are kept";
}

TEST_F(ClusterClientTest, ARefusalForGoodEndsTheClient) {
  router_->Refuse({grpc::StatusCode::OUT_OF_RANGE, "speaks 3 to 4, this router 2 to 2"});
  Begin(kDecode);
  ASSERT_TRUE(AwaitRejected());
  MutexLock lock(&mutex_);
  EXPECT_TRUE(absl::IsOutOfRange(rejected_));
  EXPECT_EQ(rejected_.message(), "speaks 3 to 4, this router 2 to 2");
}

TEST_F(ClusterClientTest, WhoIsRefusedSaysWhyAndJoinsWhenItMay) {
  router_->SetView(2, {kDecode, kStage});
  router_->Refuse({grpc::StatusCode::FAILED_PRECONDITION, "page size 16, the cluster has 64"});
  Begin(kDecode);
  ASSERT_TRUE(AwaitRefusing(1));
  EXPECT_FALSE(client_->registered());
  const std::string why = client_->WhyNotRegistered();
  EXPECT_NE(why.find("refuses this worker: page size 16, the cluster has 64 (for "),
            std::string::npos)
      << why;
  router_->Refuse(grpc::Status::OK);
  ASSERT_TRUE(router_->AwaitApplied(2));
  ASSERT_TRUE(AwaitRefusing(0));
  EXPECT_EQ(client_->WhyNotRegistered(), "");
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
