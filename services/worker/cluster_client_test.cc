#include "services/worker/cluster_client.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

#include "services/worker/cluster_client_fixture.h"

namespace baton::worker {
namespace {

const v1::WorkerInfo kNext = Worker("a-1", 3, v1::ROLE_PREFILL, "a");

TEST_F(ClusterClientTest, AStageIsConnectedToItsChainAndHearsOfItOnce) {
  router_->SetView(7, {kStage, kNext});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(7));
  EXPECT_TRUE(client_->registered());
  EXPECT_TRUE(router_->ready());
  EXPECT_TRUE(router_->AwaitLinked({2, 3}));
  EXPECT_EQ(plane_.Open(), (Addresses{"a-1/3"}));
  EXPECT_TRUE(client_->Find({"a-1", 3}).has_value());
  EXPECT_FALSE(client_->Find({"a-1", 4}).has_value()) << "another incarnation";
  MutexLock lock(&mutex_);
  ASSERT_EQ(members_.size(), 1u);
  EXPECT_EQ(members_[0].size(), 1u) << "without the worker itself";
}

TEST_F(ClusterClientTest, WhoIsWantedIsLookedUpAndConnectedTo) {
  router_->SetOthers({kDecode});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(1));
  const auto peer = Reach({"decode-0", 1});
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(plane_.Open(), (Addresses{"decode-0/1"}));
  EXPECT_EQ(client_->Endpoints(Role::kDecode), (std::vector<PeerId>{*peer}));
  EXPECT_EQ(Reach({"decode-0", 1}), peer);
  EXPECT_EQ(router_->lookups(), 1);
}

TEST_F(ClusterClientTest, WhoIsNotFoundOrCannotBeReachedIsRefusedForAMoment) {
  plane_.SetUnreachable({"decode-0/1"});
  router_->SetOthers({kDecode});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(1));
  EXPECT_FALSE(Reach({"decode-0", 1}).has_value());
  EXPECT_FALSE(Reach({"nobody", 1}).has_value());
  plane_.SetUnreachable({});
  std::optional<PeerId> peer;
  while (!peer.has_value()) peer = Reach({"decode-0", 1});
  EXPECT_EQ(plane_.Open(), (Addresses{"decode-0/1"}));
}

TEST_F(ClusterClientTest, ALostEndpointIsOpenedAnewWhenItIsWanted) {
  router_->SetOthers({kDecode});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(1));
  const auto lost = Reach({"decode-0", 1});
  client_->OnPeerFailed(*lost);
  while (client_->Find({"decode-0", 1}) == lost) std::this_thread::yield();
  std::optional<PeerId> renewed;
  while (!renewed.has_value()) renewed = Reach({"decode-0", 1});  // Refused for a moment, perhaps.
  EXPECT_NE(renewed, lost);
}

TEST_F(ClusterClientTest, ARouterThatAsksForAHeartbeatTellsOfTheMembersAtOnce) {
  NoIntervals();
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitLeases(1));
  for (uint64_t version = 3; version < 6; ++version) {
    router_->SetView(version, {kStage, Worker("a-1", version, v1::ROLE_PREFILL, "a")});
    std::optional<PeerId> peer;
    while (!peer.has_value()) peer = client_->Find({"a-1", version});
  }
}

TEST_F(ClusterClientTest, ARouterThatStartsAnewOrForgetsTheWorkerDisconnectsNobody) {
  router_->SetView(7, {kStage, kNext});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(7));
  const auto next = client_->Find({"a-1", 3});
  router_->SetView(20, {kStage});
  router_->StartAnew();
  ASSERT_TRUE(router_->AwaitHad(20));
  ASSERT_TRUE(AwaitMembers(0));
  EXPECT_EQ(client_->Find({"a-1", 3}), next);
  router_->Forget();
  ASSERT_TRUE(router_->AwaitRegistrations(3));
  ASSERT_TRUE(router_->AwaitHad(20));
  EXPECT_EQ(client_->Find({"a-1", 3}), next);
}

TEST_F(ClusterClientTest, SurvivesTheRouter) {
  router_->SetView(5, {kStage, kNext});
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(5));
  const auto peer = client_->Find({"a-1", 3});
  const int port = router_->port();
  router_.reset();
  router_ = std::make_unique<FakeRouter>(port, kRouterIncarnation + 1);
  router_->SetView(5, {kStage, kNext});  // The same version of another life.
  ASSERT_TRUE(router_->AwaitRegistrations(1));
  ASSERT_TRUE(router_->AwaitHad(5));
  EXPECT_EQ(client_->Find({"a-1", 3}), peer);
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
  ASSERT_TRUE(router_->AwaitHad(2));
  EXPECT_EQ(plane_.Open(), Addresses{}) << "no tensors pass between them by this way";
  MutexLock lock(&mutex_);
  ASSERT_EQ(members_.size(), 1u);
  ASSERT_EQ(members_[0].size(), 1u);
  EXPECT_EQ(members_[0][0].decode_id, "7");
  EXPECT_EQ(members_[0][0].tensor_rank, (TensorRank{1, 2}));
}

TEST_F(ClusterClientTest, ABrokenCallIsOpenedAnew) {
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  for (int call = 1; call < 4; ++call) {
    ASSERT_TRUE(router_->AwaitLeases(call));
    router_->BreakLeases();
  }
  EXPECT_TRUE(router_->AwaitLeases(4));
  EXPECT_TRUE(router_->AwaitRegistrations(4));
}

TEST_F(ClusterClientTest, AChangedStatusIsReportedAtOnce) {
  NoIntervals();
  router_->SetView(2, {kDecode, kStage});
  Begin(kDecode);
  ASSERT_TRUE(router_->AwaitLeases(1));
  ready_ = false;
  client_->ReportSoon();
  EXPECT_TRUE(router_->AwaitReady(false));
  EXPECT_EQ(router_->why_not_ready(), "its links are down");
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
  ASSERT_TRUE(router_->AwaitHad(2));
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
  router_->SetView(2, {kStage, kNext});
  other.SetView(7, {kStage, Worker("a-2", 4, v1::ROLE_PREFILL, "a")});
  routers_ = {"router:1"};
  addresses_["router:1"] = std::vector<std::string>{router_->address()};
  Begin(kStage);
  ASSERT_TRUE(router_->AwaitHad(2));
  {
    MutexLock lock(&mutex_);
    addresses_["router:1"] = std::vector<std::string>{router_->address(), other.address()};
  }
  ASSERT_TRUE(other.AwaitHad(7)) << "found when the name is resolved again";
  EXPECT_EQ(plane_.Open(), (Addresses{"a-1/3", "a-2/4"}));
  {
    MutexLock lock(&mutex_);
    addresses_["router:1"] = absl::UnavailableError("DNS does not answer");
  }
  ASSERT_TRUE(other.AwaitHeartbeats(5));
  ASSERT_TRUE(router_->AwaitHeartbeats(5));
  router_.reset();  // One dies; nothing happens to what the other lists.
  ASSERT_TRUE(other.AwaitHeartbeats(5));
  EXPECT_TRUE(client_->Find({"a-2", 4}).has_value());
  EXPECT_TRUE(client_->registered());
}

TEST_F(ClusterClientTest, RoutersHearOfThePromptsThatOthersSent) {
  FakeRouter other(0, 0x88);
  routers_ = {router_->address(), other.address()};
  Begin(kStage);
  client_->ReportPrompt(0x88, {5, 6});
  ASSERT_TRUE(router_->AwaitHeartbeats(3));
  ASSERT_TRUE(other.AwaitHeartbeats(3));
  EXPECT_EQ(router_->Taken(), (std::vector<std::vector<uint64_t>>{{5, 6}}));
  EXPECT_TRUE(other.Taken().empty());
}

TEST_F(ClusterClientTest, ARouterThatCouldNotNotePromptsHearsOfThemAgain) {
  router_->TakePrompts(false);
  Begin(kStage);
  client_->ReportPrompt(0x88, {5, 6});
  ASSERT_TRUE(router_->AwaitHeartbeats(3));
  router_->TakePrompts(true);
  ASSERT_TRUE(router_->AwaitHeartbeats(3));
  EXPECT_EQ(router_->Taken(), (std::vector<std::vector<uint64_t>>{{5, 6}}));
}

TEST_F(ClusterClientTest, ARouterThatAnnouncesItselfIsJoined) {
  router_->SetView(2, {kDecode, kStage});
  routers_ = {"nobody:1"};
  addresses_["nobody:1"] = absl::UnavailableError("no such name");
  Begin(kDecode);
  client_->Announce(router_->address());
  EXPECT_TRUE(router_->AwaitHad(2));
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
