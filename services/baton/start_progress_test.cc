#include "services/baton/start_progress.h"

#include <gtest/gtest.h>

#include <map>

namespace baton {
namespace {

class StartProgressTest : public testing::Test {
 protected:
  std::string Note() {
    return progress_.Note([this](const std::string& name) { return states_[name]; });
  }

  std::map<std::string, StartState> states_;
  StartProgress progress_{
      "cluster starting",
      "registered",
      {{"chain-0", "ranks", {"a", "b", "c", "d"}}, {"decode", "services", {"e"}}}};
};

TEST_F(StartProgressTest, SaysNothingUntilSomebodyIsThere) {
  EXPECT_EQ(Note(), "");
  EXPECT_EQ(Note(), "");
}

TEST_F(StartProgressTest, CountsEachGroupAndSaysEveryChangeOnce) {
  states_["b"] = StartState::kHere;
  EXPECT_EQ(Note(),
            "cluster starting: chain-0: 0 of 4 ranks ready, 1 registered; "
            "decode: 0 of 1 services ready");
  EXPECT_EQ(Note(), "");
  states_["a"] = StartState::kReady;
  states_["e"] = StartState::kReady;
  EXPECT_EQ(Note(),
            "cluster starting: chain-0: 1 of 4 ranks ready, 2 registered; "
            "decode: 1 of 1 services ready");
  for (const char* name : {"a", "b", "c", "d"}) states_[name] = StartState::kReady;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 4 of 4 ranks ready; decode: 1 of 1 services ready");
  EXPECT_EQ(Note(), "");
}

// Another rank in the place of one that went is no news; that they are fewer is.
TEST_F(StartProgressTest, SaysWhenSomebodyIsGone) {
  states_["a"] = StartState::kReady;
  ASSERT_NE(Note(), "");
  states_["a"] = StartState::kAbsent;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 0 of 4 ranks ready; decode: 0 of 1 services ready");
  states_["d"] = StartState::kReady;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 1 of 4 ranks ready; decode: 0 of 1 services ready");
}

}  // namespace
}  // namespace baton
