// Which pairs are ready, held against their definition while workers of one rank and of several
// come, fall silent, drain, can't connect to one another and are started again, by chance.
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
constexpr int64_t kApartUs = 400;

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
// services of 1, 2 and 4, and one of two stages.
std::vector<WorkerInfo> Everybody() {
  std::vector<WorkerInfo> all = Together({TestStage("c1", 0, 1), TestDecode("d9")}, {});
  for (const int place : {0, 1, 2, 3}) all.push_back(TestStageRank(place / 2, place % 2));
  for (const int stage : {0, 1, 2, 3}) all.push_back(TestColocated("x", stage, 4));
  for (const int rank : {0, 1}) all.push_back(TestDecodeRank(rank, 2, "2"));
  for (const int rank : {0, 1, 2, 3}) all.push_back(TestDecodeRank(rank, 4, "4"));
  for (const int stage : {0, 1}) all.push_back(TestDecodeStage(stage, "3"));
  return all;
}

class MembershipPairsTest : public ::testing::Test {
 protected:
  // The processes of one chain or decode service if each place is held by one that can serve, and
  // the first of them links these lives.
  std::vector<const Worker*> Side(const std::vector<std::string>& names) {
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
    const std::vector<uint64_t>& linked = side[0]->linked;
    const bool says = side.size() > 1;
    for (const Worker* worker : side) {
      const uint64_t life = worker->info.instance.incarnation;
      if (!says || std::find(linked.begin(), linked.end(), life) != linked.end()) continue;
      ++hidden_by_["links"];
      return {};
    }
    return side;
  }
  bool MayPair(const std::vector<const Worker*>& chain, const std::vector<const Worker*>& decode) {
    if (chain.empty() || decode.empty()) return false;
    const bool apart = apart_until_us_.contains(
        {chain[0]->info.instance.incarnation, decode[0]->info.instance.incarnation});
    hidden_by_["a failure"] += apart ? 1 : 0;
    return !apart;
  }
  std::set<Processes> ByDefinition() {
    here_ = members_.Workers();
    std::set<Processes> pairs;
    const auto add = [&pairs](const std::vector<const Worker*>& a,
                              const std::vector<const Worker*>& b) {
      Processes processes;
      processes.reserve(a.size() + b.size());
      for (const Worker* worker : a) processes.push_back(worker->info.instance);
      for (const Worker* worker : b) processes.push_back(worker->info.instance);
      pairs.insert(processes);
    };
    const auto colocated = Side({"x-0", "x-1", "x-2", "x-3"});
    if (!colocated.empty()) add(colocated, {});
    const std::vector<std::vector<const Worker*>> decodes = {Side({"d9"}), Side({"d2-0", "d2-1"}),
                                                             Side({"d4-0", "d4-1", "d4-2", "d4-3"}),
                                                             Side({"d3-0", "d3-1"})};
    for (const auto& chain : {Side({"c1-0"}), Side({"c0-0-0", "c0-0-1", "c0-1-0", "c0-1-1"})}) {
      for (const auto& decode : decodes) {
        if (MayPair(chain, decode)) add(chain, decode);
      }
    }
    return pairs;
  }

  const WorkerInfo& Any() { return everybody_[random_.Below(everybody_.size())]; }

  void Beat(const WorkerInfo& worker) {
    std::vector<uint64_t> linked = LinkedBy(members_, worker.instance);
    if (!linked.empty() && random_.Chance(0.05)) linked[random_.Below(linked.size())] = ++lives_;
    const bool ready = random_.Chance(0.97);
    if (members_.Find(worker.instance) == nullptr) return;
    members_.Heartbeat(worker.instance, ready, {}, now_us_, std::move(linked));
  }
  void LetOneFailToConnect() {
    if (members_.ReadyPairs().empty()) return;
    const Pair pair = members_.ReadyPairs()[random_.Below(members_.ReadyPairs().size())];
    members_.CouldNotConnect(pair, now_us_);
    apart_until_us_[{pair.chain.stage0.incarnation, pair.decode.incarnation}] = now_us_ + kApartUs;
  }
  void StartAgain(WorkerInfo& worker) {
    members_.Suspect(worker.instance, now_us_);
    worker.instance.incarnation = ++lives_;
    std::vector<Worker> lost;
    ASSERT_TRUE(members_.Register(worker, now_us_, lost).ok());
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
      StartAgain(everybody_[random_.Below(everybody_.size())]);
    } else if (kind < 88) {
      members_.Suspect(Any().instance, now_us_);
    } else if (kind < 91) {
      members_.FailedToServe(Any().instance, now_us_);
    } else if (kind < 93) {
      members_.Served(Any().instance);
    } else if (kind < 95) {
      LetOneFailToConnect();
    } else if (kind < 96) {
      members_.SaysDraining(Any().instance);
    } else if (kind < 97) {
      members_.Remove(Any().instance, now_us_, lost);
    } else {
      members_.Expire(now_us_);
      std::erase_if(apart_until_us_, [this](const auto& apart) { return apart.second <= now_us_; });
    }
  }

  void Begin(int seed) {
    members_ = Membership(
        MembershipOptions{.lease_us = 3000, .unconnected_us = kApartUs, .first_probation_us = 100});
    apart_until_us_.clear();
    everybody_ = Everybody();
    now_us_ = 0;
    random_ = Random(static_cast<uint64_t>(seed));
    for (WorkerInfo& worker : everybody_) worker.instance.incarnation = ++lives_;
  }

  Membership members_{{}};
  std::vector<WorkerInfo> everybody_;
  std::vector<Worker> here_;
  // By the incarnations of the first processes of both.
  std::map<std::pair<uint64_t, uint64_t>, int64_t> apart_until_us_;
  std::map<std::string, int> hidden_by_;  // Why sides and pairs that could serve did not.
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
  (void)members_.roster().decodes.TakeChanged();
  const InstanceRef decode = members_.ReadyPairs()[0].decode;
  members_.Heartbeat(decode, true, {.running_requests = 7}, now_us_, members_.Find(decode)->linked);
  EXPECT_EQ(members_.Find(decode)->load.running_requests, 7);
  EXPECT_TRUE(members_.roster().decodes.TakeChanged().empty());
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
  for (const char* why : {"links", "a failure"}) EXPECT_GT(hidden_by_[why], 20) << why;
}

}  // namespace
}  // namespace baton::router
