#include "services/prefill/chain/profile_keeper.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace baton::prefill {
namespace {

constexpr StageCost kCost = {.overhead_us = 500, .token_us = 50, .attention_us = 0.02};
constexpr int64_t kInterval = ProfileKeeper::kIntervalUs;

class ProfileKeeperTest : public testing::Test {
 protected:
  ProfileKeeperTest()
      : path_(testing::TempDir() + "/profile_keeper_" +
              testing::UnitTest::GetInstance()->current_test_info()->name() + ".json") {
    std::filesystem::remove(path_);
    Make({});
  }

  void Make(std::optional<ChunkProfile> loaded, bool writes = true) {
    MeasuredOn here;
    here.model = "toy";
    here.executor = "native";
    keeper_ = std::make_unique<ProfileKeeper>(
        ProfileKeeper::Options{path_, here, std::move(loaded), writes});
  }
  // Two stages that have learned from so many plans each.
  static std::vector<LearnedCost> Learned(uint64_t plans) {
    return {{kCost, nullptr, 0.1, plans, 3}, {kCost.Times(2), nullptr, 0.2, plans, 4}};
  }
  // What stands in the file once all that was to be written is; none: nothing.
  std::optional<ChunkProfile> Written() {
    keeper_.reset();
    auto profile = LoadChunkProfile(path_);
    if (!profile.ok()) return std::nullopt;
    return *profile;
  }

  const std::string path_;
  std::unique_ptr<ProfileKeeper> keeper_;
};

TEST_F(ProfileKeeperTest, WritesWhatWasLearned) {
  keeper_->Keep(Learned(20), 0);
  const auto profile = Written();
  ASSERT_TRUE(profile.has_value());
  EXPECT_EQ(profile->on.model, "toy");
  ASSERT_EQ(profile->stages.size(), 2u);
  EXPECT_EQ(profile->stages[1].layers, 4);
  EXPECT_EQ(profile->stages[1].cost, kCost.Times(2));
  EXPECT_EQ(profile->stages[1].error, 0.2);
  EXPECT_EQ(profile->stages[1].plans, 20);
}

TEST_F(ProfileKeeperTest, WritesNothingHalf) {
  std::vector<LearnedCost> half = Learned(20);
  half[1].cost.reset();
  keeper_->Keep(half, 0);
  std::vector<LearnedCost> unnamed = Learned(20);
  unnamed[0].layers = 0;
  keeper_->Keep(unnamed, 0);
  keeper_->KeepLast({});
  EXPECT_FALSE(Written().has_value());
}

TEST_F(ProfileKeeperTest, WritesNowAndThenAndAtTheEnd) {
  keeper_->Keep(Learned(20), 100);
  keeper_->Keep(Learned(21), 100 + kInterval - 1);
  EXPECT_EQ(Written()->stages[0].plans, 20) << "not before the interval is over";
  Make({});
  keeper_->Keep(Learned(20), 100);
  keeper_->KeepLast(Learned(22));
  EXPECT_EQ(Written()->stages[0].plans, 22);
}

TEST_F(ProfileKeeperTest, WritesNothingTwice) {
  keeper_->Keep(Learned(20), 0);
  ASSERT_TRUE(Written().has_value());
  Make(LoadChunkProfile(path_).value());
  std::filesystem::remove(path_);
  keeper_->KeepLast(Learned(0));
  EXPECT_FALSE(Written().has_value()) << "nothing has been learned since";
}

TEST_F(ProfileKeeperTest, GoesOnFromTheFile) {
  keeper_->Keep(Learned(20), 0);
  Make(*Written());
  const std::vector<KnownCost> known = keeper_->KnownOf({3, 4});
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[1].cost, kCost.Times(2));
  EXPECT_EQ(known[1].error, 0.2);
  EXPECT_DOUBLE_EQ(keeper_->KnownOf({6, 1})[0].cost.token_us, 2 * kCost.token_us)
      << "of as many stages with other layers: their share";
  EXPECT_TRUE(keeper_->KnownOf({3, 2, 2}).empty());
  keeper_->Keep(Learned(5), 0);
  EXPECT_EQ(Written()->stages[0].plans, 25);
}

TEST_F(ProfileKeeperTest, LeavesAFileAloneThatItMayNotWrite) {
  Make({}, /*writes=*/false);
  keeper_->Keep(Learned(20), 0);
  keeper_->KeepLast(Learned(21));
  EXPECT_FALSE(Written().has_value());
}

TEST_F(ProfileKeeperTest, AFileThatCannotBeWrittenIsNoReasonToStop) {
  std::filesystem::create_directories(path_ + "/inside");
  keeper_->Keep(Learned(20), 0);
  keeper_->KeepLast(Learned(21));
  EXPECT_FALSE(Written().has_value());
  std::filesystem::remove_all(path_);
}

}  // namespace
}  // namespace baton::prefill
