#include "services/worker/core/peer_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/clock.h"

namespace baton::worker {
namespace {

constexpr int64_t kRetryUs = 500;

PeerWorker Worker(Role role, const std::string& id, const std::string& chain = "",
                  uint64_t incarnation = 1) {
  PeerWorker worker;
  worker.instance = {id, incarnation};
  worker.role = role;
  worker.chain_id = chain;
  return worker;
}
const PeerWorker kDecode = Worker(Role::kDecode, "d0");
const PeerWorker kOtherDecode = Worker(Role::kDecode, "d1");
const PeerWorker kStage = Worker(Role::kPrefill, "p0", "a");
const PeerWorker kStageOfB = Worker(Role::kPrefill, "p1", "b");

std::vector<std::string> Names(const std::vector<PeerWorker>& workers) {
  std::vector<std::string> names;
  names.reserve(workers.size());
  for (const PeerWorker& worker : workers) names.push_back(worker.instance.id);
  return names;
}

// A table of a prefill stage of chain "a", and routers' views of it.
class PeerTableTest : public testing::Test {
 protected:
  static RouterMembership View(const std::vector<PeerWorker>& workers) {
    RouterMembership router("r", {}, 0);
    router.Registered(1, 0, 0);
    router.HeartbeatTaken(1, workers, 0, 0);
    return router;
  }
  std::vector<uint64_t> Update(const std::vector<PeerWorker>& workers) {
    const RouterMembership view = View(workers);
    return table_.Update({&view});
  }
  std::vector<std::string> Connecting(int64_t now_us = 0) {
    return Names(table_.BeginConnecting(now_us));
  }
  // Asks for what is due and answers that it stands.
  void Connect(const PeerWorker& worker, uint64_t endpoint) {
    Connecting();
    EXPECT_TRUE(table_.Opened(worker.instance, endpoint, kRetryUs));
  }

  PeerTable table_{Worker(Role::kPrefill, "self", "a")};
};

TEST_F(PeerTableTest, AnEndpointSaysWhoIsAtItsEnd) {
  PeerWorker decode = kDecode;
  decode.protocol_version = 4;
  Update({decode});
  Connect(decode, 7);
  const PeerEndpoint& endpoint = table_.endpoints().at(decode.instance);
  EXPECT_EQ(endpoint.endpoint, 7u);
  EXPECT_EQ(endpoint.role, Role::kDecode);
  EXPECT_EQ(endpoint.protocol_version, 4u);
}

TEST_F(PeerTableTest, AStageNeedsEveryDecodeAndItsOwnChain) {
  Update({kDecode, kStage, kStageOfB});
  EXPECT_EQ(Connecting(0), (std::vector<std::string>{"d0", "p0"}));
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"p1"}) << "who needs no endpoint";
}

TEST_F(PeerTableTest, ADecodeNeedsEveryStage) {
  PeerTable table(kOtherDecode);
  const RouterMembership view = View({kDecode, kStage, kStageOfB});
  table.Update({&view});
  EXPECT_EQ(Names(table.BeginConnecting(0)), (std::vector<std::string>{"p0", "p1"}));
}

TEST_F(PeerTableTest, AColocatedChainNeedsItselfAlone) {
  const auto colocated = [](PeerWorker worker) {
    worker.decodes = true;
    return worker;
  };
  const RouterMembership view = View({kDecode, colocated(kStage), kStageOfB});
  PeerTable stage(colocated(Worker(Role::kPrefill, "self", "a")));
  stage.Update({&view});
  EXPECT_EQ(Names(stage.BeginConnecting(0)), std::vector<std::string>{"p0"});
  PeerTable decode(kOtherDecode);
  decode.Update({&view});
  EXPECT_EQ(Names(decode.BeginConnecting(0)), std::vector<std::string>{"p1"});
}

TEST_F(PeerTableTest, WhoIsMissingIsTriedAgainNowAndThen) {
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  Update({kDecode});
  EXPECT_EQ(table_.NextConnectUs(), 0);
  EXPECT_EQ(Connecting(100).size(), 1u);
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs) << "one answer is due";
  EXPECT_TRUE(Connecting(100'000).empty());
  table_.NotOpened(kDecode.instance, 100 + kRetryUs);
  EXPECT_EQ(table_.NextConnectUs(), 100 + kRetryUs);
  Update({kDecode});
  EXPECT_EQ(table_.NextConnectUs(), 100 + kRetryUs) << "a view is no reason to try sooner";
  EXPECT_TRUE(Connecting(100 + kRetryUs - 1).empty());
  EXPECT_EQ(Connecting(100 + kRetryUs).size(), 1u);
  EXPECT_TRUE(table_.Opened(kDecode.instance, 7, kRetryUs));
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"d0"});
  EXPECT_EQ(table_.Died(7, 2000), kDecode.instance);
  EXPECT_TRUE(Connecting(1999).empty());
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"d0"}) << "it stood once";
  EXPECT_EQ(table_.Died(7, 1000), std::nullopt) << "once is enough";
  EXPECT_EQ(table_.NextConnectUs(), 2000);
  EXPECT_EQ(Connecting(2000).size(), 1u);
}

TEST_F(PeerTableTest, AnEndpointThatDiesBeforeItIsKnownNeverStood) {
  Update({kDecode, kOtherDecode});
  EXPECT_EQ(Connecting().size(), 2u);
  EXPECT_EQ(table_.Died(7, 5), std::nullopt);
  EXPECT_FALSE(table_.Opened(kDecode.instance, 7, 900));
  EXPECT_FALSE(table_.Stands(kDecode.instance));
  EXPECT_EQ(table_.NextConnectUs(), 900);
  EXPECT_TRUE(table_.Opened(kOtherDecode.instance, 8, 900)) << "another one";
  const std::vector<std::string> again = Connecting(900);
  EXPECT_EQ(again, std::vector<std::string>{"d0"});
  EXPECT_TRUE(table_.Opened(kDecode.instance, 9, 1800));
}

TEST_F(PeerTableTest, ADeathIsRememberedOnlyWhileSomethingIsBeingOpened) {
  Update({kDecode});
  EXPECT_EQ(table_.Died(7, 5), std::nullopt) << "nothing is asked for";
  EXPECT_EQ(Connecting().size(), 1u);
  EXPECT_TRUE(table_.Opened(kDecode.instance, 7, 900));
  EXPECT_EQ(table_.Died(7, 900), kDecode.instance);
  EXPECT_EQ(Connecting(900).size(), 1u);
  EXPECT_EQ(table_.Died(8, 900), std::nullopt);
  table_.NotOpened(kDecode.instance, 1800);
  EXPECT_EQ(Connecting(1800).size(), 1u);
  EXPECT_TRUE(table_.Opened(kDecode.instance, 8, 2700)) << "all answers had come since";
}

TEST_F(PeerTableTest, OneEndpointToAPeerIsEnoughAndNoneToAStranger) {
  Update({kDecode, kOtherDecode});
  EXPECT_EQ(Connecting().size(), 2u);
  Update({kOtherDecode});
  Update({kDecode, kOtherDecode});
  EXPECT_EQ(Connecting(), std::vector<std::string>{"d0"}) << "listed anew, while one is opened";
  EXPECT_TRUE(table_.Opened(kDecode.instance, 7, 900));
  EXPECT_FALSE(table_.Opened(kDecode.instance, 8, 900));
  EXPECT_EQ(table_.endpoints().at(kDecode.instance).endpoint, 7u);
  EXPECT_EQ(table_.Died(8, 900), std::nullopt) << "nobody's";
  EXPECT_TRUE(table_.Stands(kDecode.instance));
  Update({kDecode});
  EXPECT_FALSE(table_.Opened(kOtherDecode.instance, 9, 900)) << "who is not here any more";
}

TEST_F(PeerTableTest, AStrangerThatCouldNotBeReachedIsNobodys) {
  Update({kDecode});
  EXPECT_EQ(Connecting().size(), 1u);
  Update({});
  table_.NotOpened(kDecode.instance, 900);
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  EXPECT_FALSE(table_.Holds(kDecode.instance));
}

TEST_F(PeerTableTest, AViewIsTriedWhenEachEndpointStandsOrHasFailed) {
  using Incarnations = std::vector<uint64_t>;
  const PeerWorker decode = Worker(Role::kDecode, "d0", "", 9);
  const PeerWorker stage = Worker(Role::kPrefill, "p0", "a", 5);
  const RouterMembership view = View({decode, stage, kStageOfB});
  table_.Update({&view});
  EXPECT_FALSE(table_.Tried(view.listed()));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5, 9})) << "p1 needs none";
  Connect(decode, 1);
  EXPECT_FALSE(table_.Tried(view.listed()));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  table_.NotOpened(stage.instance, 0);
  EXPECT_TRUE(table_.Tried(view.listed())) << "in vain";
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  Connect(stage, 2);
  EXPECT_EQ(table_.Unconnected(view.listed()), Incarnations{});
  EXPECT_TRUE(table_.Stands(stage.instance));
  EXPECT_EQ(table_.endpoints().at(stage.instance).role, Role::kPrefill);
  EXPECT_EQ(table_.Died(2, 0), stage.instance);
  EXPECT_FALSE(table_.Stands(stage.instance));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  EXPECT_FALSE(table_.Tried(View({kOtherDecode}).listed())) << "who is not here";
  EXPECT_EQ(table_.Unconnected(View({kOtherDecode}).listed()), (Incarnations{1}));
}

TEST_F(PeerTableTest, WhoIsInNoViewIsClosedIfItStood) {
  Update({kDecode, kOtherDecode});
  Connect(kDecode, 1);
  EXPECT_EQ(Update({kOtherDecode}), std::vector<uint64_t>{1});
  EXPECT_FALSE(table_.Holds(kDecode.instance));
  EXPECT_TRUE(Update({}).empty()) << "d1 never stood";
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  EXPECT_EQ(table_.Died(1, 5), std::nullopt) << "closed already";
  EXPECT_FALSE(table_.Holds(kDecode.instance));
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
}

TEST_F(PeerTableTest, OneRoutersWordSuffices) {
  const RouterMembership one = View({kDecode});
  const RouterMembership two = View({kOtherDecode});
  table_.Update({&one, &two});
  Connect(kDecode, 1);
  EXPECT_TRUE(table_.Opened(kOtherDecode.instance, 2, 0));
  EXPECT_EQ(table_.Update({&two}), std::vector<uint64_t>{1});
  EXPECT_TRUE(table_.Holds(kOtherDecode.instance));
}

TEST_F(PeerTableTest, WhoIsOnlyKeptIsNotConnectedToButStays) {
  RouterMembership router = View({kDecode, kOtherDecode});
  table_.Update({&router});
  Connect(kDecode, 1);
  table_.NotOpened(kOtherDecode.instance, 0);
  router.Registered(2, 0, 10);  // Another life of it, which lists no peer yet.
  router.HeartbeatTaken(7, {}, 0, 10);
  EXPECT_TRUE(table_.Update({&router}).empty()) << "its endpoint stays";
  EXPECT_TRUE(table_.Holds(kOtherDecode.instance));
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs) << "but nobody asks for another";
  EXPECT_EQ(table_.Died(1, 5), kDecode.instance);
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
}

TEST_F(PeerTableTest, OfTwoLivesTheOneThatCameLastIsTold) {
  const PeerWorker again = Worker(Role::kDecode, "d0", "", 2);
  Update({kDecode});
  Connect(kDecode, 1);
  Update({kDecode, again, kStageOfB});
  ASSERT_EQ(Names(table_.Known()), (std::vector<std::string>{"p1", "d0"}));
  EXPECT_EQ(table_.Known()[1].instance.incarnation, 1u) << "the new one has not stood yet";
  Connect(again, 2);
  EXPECT_EQ(table_.Known().size(), 2u);
  EXPECT_EQ(table_.Known()[1].instance.incarnation, 2u);
}

// A router that was late tells of a dead one after the other has told of its successor, then keeps
// it.
TEST_F(PeerTableTest, WhoIsOnlyKeptComesBehindWhoIsListed) {
  const RouterMembership prompt = View({kOtherDecode});
  table_.Update({&prompt});
  Connect(kOtherDecode, 1);
  RouterMembership late = View({kDecode, kStageOfB});
  table_.Update({&prompt, &late});
  Connect(kDecode, 2);
  ASSERT_EQ(Names(table_.Known()), Names({kStageOfB, kDecode, kOtherDecode}));
  late.Registered(1, 0, 10);
  late.HeartbeatTaken(2, {kOtherDecode}, 0, 10);
  table_.Update({&prompt, &late});
  EXPECT_EQ(Names(table_.Known()), Names({kOtherDecode, kStageOfB, kDecode}));
}

TEST_F(PeerTableTest, RenewOpensEveryEndpointAgain) {
  const PeerWorker third = Worker(Role::kDecode, "d2");
  Update({kDecode, kOtherDecode, third});
  ASSERT_EQ(table_.BeginConnecting(0).size(), 3u);
  ASSERT_TRUE(table_.Opened({"d0", 1}, 1, 100));
  table_.NotOpened({"d1", 1}, 100);
  // d2's is being opened still.
  EXPECT_EQ(table_.Renew(), (std::vector<uint64_t>{1}));
  EXPECT_FALSE(table_.Stands({"d0", 1}));
  EXPECT_FALSE(table_.Tried(View({kDecode}).listed()));
  EXPECT_EQ(table_.BeginConnecting(0).size(), 2u);
  // It began before: a peer may have let go of it since.
  EXPECT_FALSE(table_.Opened({"d2", 1}, 2, 100));
  EXPECT_EQ(table_.BeginConnecting(0).size(), 1u);
  EXPECT_TRUE(table_.Opened({"d2", 1}, 3, 100));
  EXPECT_TRUE(table_.Opened({"d0", 1}, 4, 100));
  EXPECT_TRUE(table_.Tried(View({kDecode, third}).listed()));
}

TEST_F(PeerTableTest, OnePeersEndpointIsRenewed) {
  Update({kDecode, kOtherDecode});
  EXPECT_EQ(table_.Renew(kDecode.instance), std::nullopt) << "none stands";
  Connect(kDecode, 7);
  EXPECT_TRUE(table_.Opened(kOtherDecode.instance, 8, kRetryUs));
  EXPECT_EQ(table_.Renew(kDecode.instance), 7);
  EXPECT_FALSE(table_.Stands(kDecode.instance));
  EXPECT_TRUE(table_.Stands(kOtherDecode.instance));
  EXPECT_FALSE(table_.Tried(View({kDecode}).listed()));
  EXPECT_EQ(Names(table_.Known()), Names({kOtherDecode, kDecode})) << "it stood once";
  EXPECT_EQ(Connecting(), Names({kDecode})) << "at once";
  EXPECT_EQ(table_.Renew(kDecode.instance), std::nullopt) << "it is being opened";
  EXPECT_FALSE(table_.Opened(kDecode.instance, 9, kRetryUs)) << "and the peer may have closed it";
  Connect(kDecode, 10);
  EXPECT_TRUE(table_.Tried(View({kDecode}).listed()));
}

TEST_F(PeerTableTest, WhoIsListedAgainWhileItsEndpointIsOpenedIsNotOpenedTwice) {
  Update({kDecode});
  ASSERT_EQ(table_.BeginConnecting(0).size(), 1u);
  RouterMembership keeps = View({kDecode});
  keeps.Registered(2, 0, 10);
  keeps.HeartbeatTaken(7, {}, 0, 10);  // Kept, and not listed.
  table_.Update({&keeps});
  Update({kDecode});
  EXPECT_TRUE(table_.BeginConnecting(0).empty());
  EXPECT_TRUE(table_.Opened({"d0", 1}, 1, 100));
}

}  // namespace
}  // namespace baton::worker
