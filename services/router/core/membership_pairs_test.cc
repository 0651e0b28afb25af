// Which pairs are ready, held against their definition while workers of one rank and of several
// come, fall silent, drain, lose sight of one another and are started again, by chance.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "services/router/core/membership_ranks_fixture.h"

namespace baton::router {
namespace {

constexpr int kSeeds = 40;
constexpr int kEvents = 500;

// A pair by its processes: the chain's in order of their places, then decode's in theirs, if there
// is one.
using Processes = std::vector<InstanceRef>;

Processes Of(const Pair& pair) {
  Processes processes;
  for (const KvWriter& stage : pair.chain.stages) processes.push_back(stage.instance);
  if (pair.colocated()) return processes;
  processes.push_back(pair.decode);
  processes.insert(processes.end(), pair.followers.begin(), pair.followers.end());
  return processes;
}

// Every process that there is: chains of 1 x 1 and 2 x 2 places, a colocated one of 4 x 1, decode
// services of 1, 2 and 4.
std::vector<WorkerInfo> Everybody() {
  std::vector<WorkerInfo> all = Together({TestStage("c1", 0, 1), TestDecode("d9")}, {});
  for (const int place : {0, 1, 2, 3}) all.push_back(TestStageRank(place / 2, place % 2));
  for (const int stage : {0, 1, 2, 3}) all.push_back(TestColocated("x", stage, 4));
  for (const int rank : {0, 1}) all.push_back(TestDecodeRank(rank, 2, "2"));
  for (const int rank : {0, 1, 2, 3}) all.push_back(TestDecodeRank(rank, 4, "4"));
  return all;
}

class MembershipPairsTest : public ::testing::Test {
 protected:
  // The processes of one chain or decode service if each place is held by one that can serve.
  std::vector<const Worker*> Side(const std::vector<std::string>& names) const {
    std::vector<const Worker*> side;
    for (const std::string& name : names) {
      const auto found = std::find_if(here_.begin(), here_.end(), [&](const Worker& worker) {
        return worker.info.instance.id == name;
      });
      if (found == here_.end() || !found->ready || found->draining || found->suspect ||
          found->probation_until_us != 0) {
        return {};
      }
      side.push_back(&*found);
    }
    for (const Worker* worker : side) {
      if (side[0]->applied_version < worker->joined_version) return {};
    }
    return side;
  }
  static bool Reaches(const Worker& from, const Worker& to) {
    const auto& lost = from.unconnected;
    return from.applied_version >= to.joined_version &&
           std::find(lost.begin(), lost.end(), to.info.instance.incarnation) == lost.end();
  }
  std::set<Processes> ByDefinition() {
    here_ = members_.Workers();
    std::set<Processes> pairs;
    const auto colocated = Side({"x-0", "x-1", "x-2", "x-3"});
    Processes whole;
    bool connected = !colocated.empty();
    for (const Worker* stage : colocated) {
      whole.push_back(stage->info.instance);
      for (const Worker* other : colocated) connected = connected && Reaches(*stage, *other);
    }
    if (connected) pairs.insert(whole);
    for (const auto& chain : {Side({"c1-0"}), Side({"c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"})}) {
      for (const auto& decode :
           {Side({"d9"}), Side({"d2-0", "d2-1"}), Side({"d4-0", "d4-1", "d4-2", "d4-3"})}) {
        bool all = !chain.empty() && !decode.empty();
        Processes processes;
        for (const Worker* stage : chain) {
          processes.push_back(stage->info.instance);
          for (const Worker* rank : decode) {
            all = all && Reaches(*stage, *rank) && Reaches(*rank, *stage);
          }
        }
        for (const Worker* rank : decode) processes.push_back(rank->info.instance);
        if (all) pairs.insert(processes);
      }
    }
    return pairs;
  }

  const WorkerInfo& Any() { return everybody_[random_.Below(everybody_.size())]; }

  void Beat(const WorkerInfo& worker) {
    std::vector<uint64_t> unconnected;
    if (random_.Chance(0.02)) unconnected = {Any().instance.incarnation};
    const uint64_t version = members_.view_version() - (random_.Chance(0.05) ? 1 : 0);
    const bool ready = random_.Chance(0.97);
    static_cast<void>(
        members_.Heartbeat(worker.instance, version, ready, {}, now_us_, std::move(unconnected)));
  }
  void Happen() {
    now_us_ += static_cast<int64_t>(random_.Below(40));
    std::vector<Worker> lost;
    const uint64_t kind = random_.Below(100);
    if (kind < 60) {
      for (const WorkerInfo& worker : everybody_) {
        if (random_.Chance(0.4)) Beat(worker);
      }
    } else if (kind < 80) {
      static_cast<void>(members_.Register(Any(), now_us_, lost));
    } else if (kind < 84) {
      WorkerInfo& again = everybody_[random_.Below(everybody_.size())];
      members_.Suspect(again.instance, now_us_);
      again.instance.incarnation = ++lives_;
      ASSERT_TRUE(members_.Register(again, now_us_, lost).ok());
    } else if (kind < 88) {
      members_.Suspect(Any().instance, now_us_);
    } else if (kind < 91) {
      members_.FailedToServe(Any().instance, now_us_);
    } else if (kind < 94) {
      members_.Served(Any().instance);
    } else if (kind < 95) {
      members_.SaysDraining(Any().instance);
    } else if (kind < 96) {
      members_.Remove(Any().instance, now_us_, lost);
    } else {
      members_.Expire(now_us_);
    }
  }

  void Begin(int seed) {
    members_ = Membership(MembershipOptions{.lease_us = 3000, .first_probation_us = 100});
    everybody_ = Everybody();
    now_us_ = 0;
    random_ = Random(static_cast<uint64_t>(seed));
    for (WorkerInfo& worker : everybody_) worker.instance.incarnation = ++lives_;
  }

  Membership members_{{}};
  std::vector<WorkerInfo> everybody_;
  std::vector<Worker> here_;
  uint64_t lives_ = 0;
  // As choices see them.
  std::set<Processes> OfRoster() {
    std::set<Processes> pairs;
    const Roster& roster = members_.roster();
    roster.VisitPairs([&](size_t chain, size_t decode) {
      const router::Side& side = *roster.chains.At(chain);
      pairs.insert(
          Of(side.pair.colocated() ? side.pair : router::Join(side, *roster.decodes.At(decode))));
      return true;
    });
    return pairs;
  }

  int64_t now_us_ = 0;
  Random random_{0};
};

TEST_F(MembershipPairsTest, ALoadChangesNone) {
  Begin(0);
  while (members_.ReadyPairs().empty()) Happen();
  const Pair* before = members_.ReadyPairs().data();
  const InstanceRef decode = members_.ReadyPairs()[0].decode;
  ASSERT_EQ(
      members_.Heartbeat(decode, members_.Find(decode)->applied_version, true,
                         {.running_requests = 7}, now_us_, members_.Find(decode)->unconnected),
      absl::OkStatus());
  EXPECT_EQ(members_.Find(decode)->load.running_requests, 7);
  EXPECT_EQ(members_.ReadyPairs().data(), before) << "built anew";
}

TEST_F(MembershipPairsTest, AreThoseOfTheDefinition) {
  std::map<size_t, int> ready_with;  // By the number of processes.
  for (int seed = 0; seed < kSeeds; ++seed) {
    Begin(seed);
    for (int event = 0; event < kEvents; ++event) {
      Happen();
      if (HasFatalFailure()) return;
      std::set<Processes> ready;
      for (const Pair& pair : members_.ReadyPairs()) {
        const Processes processes = Of(pair);
        EXPECT_TRUE(ready.insert(processes).second) << "a pair is listed twice";
        ++ready_with[processes.size()];
      }
      ASSERT_EQ(ready, ByDefinition())
          << "seed " << seed << ", event " << event << ": " << members_.WhatIsMissing();
      ASSERT_EQ(OfRoster(), ready);
      ASSERT_EQ(members_.HasReadyPair(), !ready.empty());
      ASSERT_EQ(members_.CountReadyPairs(), ready.size());
      ASSERT_EQ(members_.CheckInvariants(), absl::OkStatus());
    }
  }
  for (const size_t processes : {2, 3, 4, 5, 6, 8}) {
    EXPECT_GT(ready_with[processes], 20) << "pairs of " << processes << " processes";
  }
}

}  // namespace
}  // namespace baton::router
