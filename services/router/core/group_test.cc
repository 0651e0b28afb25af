// Which places are whole, and who fits a group.
#include "services/router/core/group.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

GridPlace ChainPlace(const std::string& id, int place, int places, bool decodes = false) {
  return {{Role::kPrefill, false, id}, place, places, decodes};
}
const GridPlace kDecode{{Role::kDecode, true, "d0"}};

// With a decode service whose only place changed long ago.
class GridsTest : public ::testing::Test {
 protected:
  GridsTest() { grids_.Hold(kDecode, 1); }
  Grids grids_;
};

TEST_F(GridsTest, AGridIsWholeWithEachOfItsPlaces) {
  EXPECT_EQ(grids_.PairChangedUs(), std::nullopt);
  grids_.Hold(ChainPlace("c0", 0, 2), 10);
  grids_.Hold(ChainPlace("c0", 0, 2), 20);
  EXPECT_EQ(grids_.PairChangedUs(), std::nullopt) << "one place, held twice";
  grids_.Hold(ChainPlace("c0", 1, 3), 90);
  EXPECT_EQ(grids_.PairChangedUs(), std::nullopt) << "of another shape";
  grids_.Hold(ChainPlace("c0", 1, 2, /*decodes=*/true), 90);
  EXPECT_EQ(grids_.PairChangedUs(), std::nullopt) << "of a chain that decodes";
  grids_.Hold(ChainPlace("c0", 1, 2), 15);
  EXPECT_EQ(grids_.PairChangedUs(), 20) << "the last change of any of them";
}

TEST_F(GridsTest, TheWholeOneThatChangedLastCounts) {
  grids_.Hold(ChainPlace("c1", 0, 1), 30);
  grids_.Hold(ChainPlace("c0", 0, 1), 10);
  EXPECT_EQ(grids_.PairChangedUs(), 30);
  grids_.Hold(ChainPlace("c2", 0, 2), 50);
  EXPECT_EQ(grids_.PairChangedUs(), 30) << "half a chain is none";
  grids_.Hold(kDecode, 40);
  EXPECT_EQ(grids_.PairChangedUs(), 40) << "either side's";
  grids_.Hold(ChainPlace("c3", 0, 1, /*decodes=*/true), 60);
  EXPECT_EQ(grids_.PairChangedUs(), 60) << "a colocated chain's";
}

TEST(GridPairsTest, APairNeedsBothSides) {
  Grids chain;
  chain.Hold(ChainPlace("c0", 0, 1));
  EXPECT_FALSE(chain.CanPair());
  Grids decode;
  decode.Hold(kDecode);
  EXPECT_FALSE(decode.CanPair());
  decode.Hold(ChainPlace("c0", 0, 1));
  EXPECT_TRUE(decode.CanPair());
}

TEST(GridPairsTest, AColocatedChainNeedsNobodyAndNobodyElseNeedsIt) {
  Grids grids;
  grids.Hold(ChainPlace("c0", 0, 2, /*decodes=*/true), 10);
  EXPECT_FALSE(grids.CanPair());
  grids.Hold(ChainPlace("c0", 1, 2, /*decodes=*/true), 20);
  EXPECT_EQ(grids.PairChangedUs(), 20);
  grids.Hold(kDecode, 50);
  EXPECT_EQ(grids.PairChangedUs(), 20) << "it is no pair with a decode service";
  grids.Hold(ChainPlace("c1", 0, 1), 30);
  EXPECT_EQ(grids.PairChangedUs(), 50);
}

class GroupTest : public ::testing::Test {
 protected:
  // Whether a worker that all the others fit fits, too, once it has this.
  template <typename Apply>
  bool FitsWith(const WorkerInfo& worker, Apply apply) const {
    WorkerInfo changed = worker;
    apply(changed);
    return group_.Fits(changed);
  }
  Group group_;
};

TEST_F(GroupTest, WhoFitsAllOfItMayJoin) {
  const WorkerInfo first = TestStage("c0", 0, 2);
  const WorkerInfo last = TestStage("c0", 1, 2);
  EXPECT_TRUE(group_.Fits(first)) << "an empty one takes everybody";
  group_.Add(last);
  EXPECT_TRUE(group_.Fits(first));
  group_.Add(first);
  const WorkerInfo decode = TestDecode("d0");
  EXPECT_TRUE(group_.Fits(decode));
  EXPECT_FALSE(FitsWith(decode, [](auto& w) { w.instance.id = "c0-0"; })) << "a name that is here";
  EXPECT_FALSE(FitsWith(TestStage("c0", 1, 2), [](auto& w) { w.instance.id = "x"; }))
      << "a place that is taken";
  // What some member holds, whichever joined first.
  EXPECT_FALSE(FitsWith(decode, [](auto& w) { w.fingerprint.embedding_hash = 0x66; }));
  EXPECT_FALSE(FitsWith(decode, [](auto& w) { w.fingerprint.head_hash = 0x66; }));
  for (const int layer : {0, 3}) {
    EXPECT_FALSE(FitsWith(decode, [&](auto& w) { w.fingerprint.layer_hashes[layer] = 0x66; }));
  }
}

TEST_F(GroupTest, TheHeadIsLearnedFromAnyMemberToo) {
  const WorkerInfo first = TestStage("c0", 0, 2);
  const WorkerInfo last = TestStage("c0", 1, 2);
  const WorkerInfo decode = TestDecode("d0");
  group_.Add(first);
  EXPECT_TRUE(FitsWith(decode, [](auto& w) { w.fingerprint.head_hash = 0x66; }));
  group_.Add(last);
  EXPECT_FALSE(FitsWith(decode, [](auto& w) { w.fingerprint.head_hash = 0x66; }));
  EXPECT_FALSE(FitsWith(decode, [](auto& w) { w.fingerprint.embedding_hash = 0x66; }));
}

TEST_F(GroupTest, AVersionThatAllSpeakIsNeeded) {
  const auto speaking = [](WorkerInfo worker, uint32_t oldest, uint32_t newest) {
    worker.fingerprint.oldest_protocol_version = oldest;
    worker.fingerprint.protocol_version = newest;
    return worker;
  };
  const WorkerInfo wide = speaking(TestDecode("d0"), 1, 9);
  const WorkerInfo low = speaking(TestDecode("d1"), 2, 6);
  const WorkerInfo high = speaking(TestDecode("d2"), 4, 8);
  group_.Add(wide);
  group_.Add(low);
  group_.Add(high);
  EXPECT_FALSE(group_.Fits(speaking(TestDecode("d3"), 1, 3))) << "the third speaks 4 and up";
  EXPECT_FALSE(group_.Fits(speaking(TestDecode("d3"), 7, 9))) << "the second 6 and down";
  EXPECT_TRUE(group_.Fits(speaking(TestDecode("d3"), 5, 5)));
  EXPECT_EQ(group_.Rank(), std::pair(false, 3));
}

}  // namespace
}  // namespace baton::router
