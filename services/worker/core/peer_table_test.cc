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
    router.HeartbeatTaken(1, workers, 0);
    return router;
  }
  std::vector<InstanceRef> Update(const std::vector<PeerWorker>& workers) {
    const RouterMembership view = View(workers);
    return table_.Update({&view});
  }
  std::vector<std::string> Connecting(int64_t now_us) {
    return Names(table_.BeginConnecting(now_us, kRetryUs));
  }

  PeerTable table_{Worker(Role::kPrefill, "self", "a")};
};

TEST_F(PeerTableTest, AStageNeedsEveryDecodeAndItsOwnChain) {
  Update({kDecode, kStage, kStageOfB});
  EXPECT_EQ(Connecting(0), (std::vector<std::string>{"d0", "p0"}));
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"p1"}) << "who needs no endpoint";
}

TEST_F(PeerTableTest, ADecodeNeedsEveryStage) {
  PeerTable table(kOtherDecode);
  const RouterMembership view = View({kDecode, kStage, kStageOfB});
  table.Update({&view});
  EXPECT_EQ(Names(table.BeginConnecting(0, kRetryUs)), (std::vector<std::string>{"p0", "p1"}));
}

TEST_F(PeerTableTest, WhoIsMissingIsTriedAgainNowAndThen) {
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  Update({kDecode});
  EXPECT_EQ(table_.NextConnectUs(), 0);
  EXPECT_EQ(Connecting(100).size(), 1u);
  EXPECT_EQ(table_.NextConnectUs(), 100 + kRetryUs);
  EXPECT_TRUE(Connecting(100 + kRetryUs - 1).empty());
  EXPECT_EQ(Connecting(100 + kRetryUs).size(), 1u);
  table_.Connected(kDecode.instance);
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"d0"});
  table_.Disconnected(kDecode.instance, 2000);
  EXPECT_TRUE(Connecting(1999).empty());
  EXPECT_EQ(Names(table_.Known()), std::vector<std::string>{"d0"}) << "it stood once";
  table_.Disconnected(kDecode.instance, 1000);
  EXPECT_EQ(table_.NextConnectUs(), 2000) << "the later of two";
  EXPECT_EQ(Connecting(2000).size(), 1u);
}

TEST_F(PeerTableTest, AViewIsTriedWhenEachEndpointStandsOrHasFailed) {
  using Incarnations = std::vector<uint64_t>;
  const PeerWorker decode = Worker(Role::kDecode, "d0", "", 9);
  const PeerWorker stage = Worker(Role::kPrefill, "p0", "a", 5);
  const RouterMembership view = View({decode, stage, kStageOfB});
  table_.Update({&view});
  EXPECT_FALSE(table_.Tried(view.listed()));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5, 9})) << "p1 needs none";
  table_.Connected(decode.instance);
  EXPECT_FALSE(table_.Tried(view.listed()));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  table_.Disconnected(stage.instance, 0);
  EXPECT_TRUE(table_.Tried(view.listed())) << "in vain";
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  table_.Connected(stage.instance);
  EXPECT_EQ(table_.Unconnected(view.listed()), Incarnations{});
  EXPECT_TRUE(table_.Stands(stage.instance));
  table_.Disconnected(stage.instance, 0);
  EXPECT_FALSE(table_.Stands(stage.instance));
  EXPECT_EQ(table_.Unconnected(view.listed()), (Incarnations{5}));
  EXPECT_FALSE(table_.Tried(View({kOtherDecode}).listed())) << "who is not here";
  EXPECT_EQ(table_.Unconnected(View({kOtherDecode}).listed()), (Incarnations{1}));
}

TEST_F(PeerTableTest, WhoIsInNoViewIsClosedIfItStood) {
  Update({kDecode, kOtherDecode});
  table_.Connected(kDecode.instance);
  EXPECT_EQ(Update({kOtherDecode}), std::vector<InstanceRef>{kDecode.instance});
  EXPECT_FALSE(table_.Holds(kDecode.instance));
  EXPECT_TRUE(Update({}).empty()) << "d1 never stood";
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
  table_.Connected(kDecode.instance);
  table_.Disconnected(kDecode.instance, 5);
  EXPECT_FALSE(table_.Holds(kDecode.instance));
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
}

TEST_F(PeerTableTest, OneRoutersWordSuffices) {
  const RouterMembership one = View({kDecode});
  const RouterMembership two = View({kOtherDecode});
  table_.Update({&one, &two});
  table_.Connected(kDecode.instance);
  table_.Connected(kOtherDecode.instance);
  EXPECT_EQ(table_.Update({&two}), std::vector<InstanceRef>{kDecode.instance});
  EXPECT_TRUE(table_.Holds(kOtherDecode.instance));
}

TEST_F(PeerTableTest, WhoIsOnlyKeptIsNotConnectedToButStays) {
  RouterMembership router = View({kDecode, kOtherDecode});
  table_.Update({&router});
  table_.Connected(kDecode.instance);
  router.Registered(2, 0, 10);  // Another life of it, which lists nobody yet.
  router.HeartbeatTaken(7, {}, 10);
  EXPECT_TRUE(table_.Update({&router}).empty()) << "its endpoint stays";
  EXPECT_TRUE(table_.Holds(kOtherDecode.instance));
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs) << "but nobody asks for another";
  table_.Disconnected(kDecode.instance, 5);
  EXPECT_EQ(table_.NextConnectUs(), kNeverUs);
}

TEST_F(PeerTableTest, OfTwoLivesTheOneThatCameLastIsTold) {
  const PeerWorker again = Worker(Role::kDecode, "d0", "", 2);
  Update({kDecode});
  table_.Connected(kDecode.instance);
  Update({kDecode, again, kStageOfB});
  ASSERT_EQ(Names(table_.Known()), (std::vector<std::string>{"p1", "d0"}));
  EXPECT_EQ(table_.Known()[1].instance.incarnation, 1u) << "the new one has not stood yet";
  table_.Connected(again.instance);
  EXPECT_EQ(table_.Known().size(), 2u);
  EXPECT_EQ(table_.Known()[1].instance.incarnation, 2u);
}

}  // namespace
}  // namespace baton::worker
