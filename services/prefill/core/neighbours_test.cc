#include "services/prefill/core/neighbours.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/base/status.h"

namespace baton::prefill {
namespace {

class NeighboursTest : public testing::Test {
 protected:
  NeighboursTest() {
    for (int stage = 0; stage < 3; ++stage) {
      const InstanceRef instance{"s" + std::to_string(stage), 5};
      hello_.members.push_back({instance, {stage, stage + 1}});
      endpoints_[instance] = 10 + static_cast<uint64_t>(stage);
    }
  }
  absl::Status Begin(Neighbours& neighbours) const { return neighbours.Begin(hello_, true, find_); }

  links::Hello hello_;
  std::map<InstanceRef, uint64_t> endpoints_;
  const FindEndpoint find_ = [this](const InstanceRef& instance) -> std::optional<uint64_t> {
    const auto found = endpoints_.find(instance);
    if (found == endpoints_.end()) return std::nullopt;
    return found->second;
  };
};

TEST_F(NeighboursTest, AStageHasOneOnEachSideButAtTheEnds) {
  Neighbours first(0);
  Neighbours middle(1);
  Neighbours last(2);
  for (Neighbours* stage : {&first, &middle, &last}) ASSERT_EQ(Begin(*stage), absl::OkStatus());
  EXPECT_FALSE(first.previous().has_value());
  EXPECT_EQ(first.next()->endpoint, 11u);
  EXPECT_EQ(middle.previous()->instance, (InstanceRef{"s0", 5}));
  EXPECT_EQ(middle.next()->instance, (InstanceRef{"s2", 5}));
  EXPECT_EQ(last.previous()->endpoint, 11u);
  EXPECT_FALSE(last.next().has_value());
}

TEST_F(NeighboursTest, NoEpochBeginsBeforeTheLastOnesWorkIsOver) {
  Neighbours stage(1);
  EXPECT_TRUE(absl::IsUnavailable(stage.Begin(hello_, /*quiet=*/false, find_)));
  EXPECT_FALSE(stage.next().has_value());
}

TEST_F(NeighboursTest, NoEpochBeginsWithoutBoth) {
  for (const char* missing : {"s0", "s2"}) {
    Neighbours stage(1);
    const auto away = endpoints_.extract(InstanceRef{missing, 5});
    const absl::Status status = Begin(stage);
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(status.message(), std::string(missing) + " is not connected");
    EXPECT_FALSE(stage.previous().has_value() || stage.next().has_value())
        << "nothing is half begun";
    endpoints_[away.key()] = away.mapped();
  }
}

TEST_F(NeighboursTest, AnotherLifeOfANeighbourIsNoneOfThisEpoch) {
  Neighbours stage(0);
  endpoints_.erase({"s1", 5});
  endpoints_[{"s1", 6}] = 20;
  EXPECT_TRUE(absl::IsUnavailable(Begin(stage)));
}

TEST_F(NeighboursTest, AnEpochEndsWithAnEndpointOfIts) {
  for (const char* lost : {"s0", "s2"}) {
    Neighbours stage(1);
    ASSERT_EQ(Begin(stage), absl::OkStatus());
    EXPECT_EQ(stage.Check(find_), absl::OkStatus());
    const auto gone = endpoints_.extract(InstanceRef{lost, 5});
    const absl::Status status = stage.Check(find_);
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(LegOf(status), "prefill");
    EXPECT_EQ(InstanceOf(status), lost);
    endpoints_[gone.key()] = gone.mapped();
  }
}

TEST_F(NeighboursTest, AnEpochEndsWhenANeighbourIsConnectedAnew) {
  Neighbours stage(1);
  ASSERT_EQ(Begin(stage), absl::OkStatus());
  endpoints_[{"s2", 5}] = 99;
  EXPECT_EQ(InstanceOf(stage.Check(find_)), "s2");
  ASSERT_EQ(Begin(stage), absl::OkStatus()) << "with the new one";
  EXPECT_EQ(stage.Check(find_), absl::OkStatus());
}

TEST_F(NeighboursTest, OfTwoThatHaveGoneTheOneBeforeIsNamed) {
  Neighbours stage(1);
  ASSERT_EQ(Begin(stage), absl::OkStatus());
  endpoints_.clear();
  EXPECT_EQ(InstanceOf(stage.Check(find_)), "s0");
}

TEST_F(NeighboursTest, NobodyIsMissedBetweenEpochs) {
  Neighbours stage(1);
  ASSERT_EQ(Begin(stage), absl::OkStatus());
  stage.End();
  endpoints_.clear();
  EXPECT_EQ(stage.Check(find_), absl::OkStatus());
}

TEST_F(NeighboursTest, AChainOfOneStageNeedsNobody) {
  hello_.members.resize(1);
  endpoints_.clear();
  Neighbours stage(0);
  EXPECT_EQ(Begin(stage), absl::OkStatus());
  EXPECT_EQ(stage.Check(find_), absl::OkStatus());
}

TEST_F(NeighboursTest, OfARankTheyAreItsCounterparts) {
  links::Hello hello;
  for (int member = 0; member < 6; ++member) {
    const InstanceRef instance{"m" + std::to_string(member), 5};
    hello.members.push_back({instance, {}, {member % 2, 2}});
    endpoints_[instance] = 20 + static_cast<uint64_t>(member);
  }
  for (const int rank : {0, 1}) {
    Neighbours middle(1, {rank, 2});
    ASSERT_EQ(middle.Begin(hello, true, find_), absl::OkStatus());
    EXPECT_EQ(middle.previous()->instance.id, "m" + std::to_string(rank));
    EXPECT_EQ(middle.next()->instance.id, "m" + std::to_string(4 + rank));
    Neighbours first(0, {rank, 2});
    Neighbours last(2, {rank, 2});
    ASSERT_EQ(first.Begin(hello, true, find_), absl::OkStatus());
    ASSERT_EQ(last.Begin(hello, true, find_), absl::OkStatus());
    EXPECT_FALSE(first.previous().has_value());
    EXPECT_FALSE(last.next().has_value());
    EXPECT_EQ(first.next()->endpoint, 22u + static_cast<uint64_t>(rank));
  }
}

}  // namespace
}  // namespace baton::prefill
