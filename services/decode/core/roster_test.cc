#include "services/decode/core/roster.h"

#include <gtest/gtest.h>

namespace baton::decode {
namespace {

KvWriter Rank(const std::string& id, int rank) { return {{id, 7}, {0, 4}, {rank, 3}}; }

TEST(RosterTest, NamesTheFollowersOfTheNewestEpochInOrder) {
  Roster roster;
  roster.Begin({Rank("a", 0), Rank("b", 1), Rank("c", 2)});
  roster.Begin({Rank("a", 0), Rank("d", 1), Rank("c", 2)});
  const RanksJoined joined = roster.Joined(40);
  EXPECT_EQ(joined.followers, (std::vector<InstanceRef>{{"d", 7}, {"c", 7}}));
  EXPECT_EQ(joined.page_count, 40);
}

TEST(RosterTest, KnowsTheNewestGenerationOfAllThatWereEverReady) {
  Roster roster;
  EXPECT_EQ(roster.Joined(40).newest_generation, 0U);
  roster.Begin({Rank("a", 0), Rank("b", 1), Rank("c", 2)});
  roster.Ready(9);
  roster.Ready(4);
  EXPECT_EQ(roster.Joined(40).newest_generation, 9U);
  // Another process in b's place has had none; what was sent to b's peers is not forgotten.
  roster.Begin({Rank("a", 0), Rank("d", 1), Rank("c", 2)});
  roster.Ready(0);
  roster.Ready(4);
  EXPECT_EQ(roster.Joined(40).newest_generation, 9U);
}

}  // namespace
}  // namespace baton::decode
