// What only virtual time can show: any interleaving, and ranks that don't belong together.
#include "common/collective/testing/in_process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/collective/testing/rank_runner.h"
#include "common/sim/event_queue.h"

namespace baton {
namespace {

using testing::Command;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::RankRunner;

std::vector<GroupDescription> Descriptions(int size, const std::vector<uint64_t>& epochs = {}) {
  std::vector<GroupDescription> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ranks[rank] = {.name = "stage 2", .epoch = 7, .rank = rank};
    if (!epochs.empty()) ranks[rank].epoch = epochs[rank];
    for (int member = 0; member < size; ++member) {
      ranks[rank].members.push_back(absl::StrCat("p", member));
    }
  }
  return ranks;
}

class InProcessGroupTest : public ::testing::Test {
 protected:
  void Make(const std::vector<GroupDescription>& ranks, const InProcessGroup::Options& options) {
    group_ =
        std::make_unique<InProcessGroup>(ranks, options,
                                         Schedule{[this] { return events_.now_us(); },
                                                  [this](int64_t at_us, std::function<void()> run) {
                                                    events_.At(at_us, std::move(run));
                                                  }});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      runners_.push_back(std::make_unique<RankRunner>(&group_->rank(static_cast<int>(rank))));
    }
  }
  void RunAll() {
    while (events_.Step()) {
    }
  }

  sim::EventQueue events_;
  std::vector<std::unique_ptr<RankRunner>> runners_;
  std::unique_ptr<InProcessGroup> group_;
};

TEST_F(InProcessGroupTest, ARankOfAnOlderEpochNeverJoins) {
  Make(Descriptions(3, {7, 7, 6}), {});
  for (const auto& runner : runners_) runner->Submit({.count = 5});
  RunAll();
  for (int rank = 0; rank < 3; ++rank) {
    const std::optional<Outcome> outcome = runners_[rank]->TryTake();
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->status.code(), absl::StatusCode::kFailedPrecondition);
    const std::string words(outcome->status.message());
    EXPECT_THAT(words, HasSubstr("stage 2 epoch 7 rank"));
    EXPECT_THAT(words, HasSubstr("stage 2 epoch 6 rank"));
  }
}

TEST_F(InProcessGroupTest, GroupsOfOtherMembersDoNotMix) {
  std::vector<GroupDescription> ranks = Descriptions(2);
  ranks[1].members[0] = "p9";
  Make(ranks, {});
  RunAll();
  EXPECT_THAT(std::string(group_->ended(0).message()), HasSubstr("p9, p1"));
  EXPECT_THAT(std::string(group_->ended(1).message()), HasSubstr("p0, p1"));
}

TEST_F(InProcessGroupTest, EveryRankHasToSayHello) {
  Make(Descriptions(3), {});
  group_->Stop(2);
  EXPECT_FALSE(group_->formed(0));
  RunAll();
  EXPECT_TRUE(group_->formed(0));
  EXPECT_FALSE(group_->formed(2));
  group_->Continue(2);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(group_->formed(rank)) << rank;
}

TEST_F(InProcessGroupTest, AStoppedRankHearsWhatItWasMissedFor) {
  Make(Descriptions(3), {});
  RunAll();
  group_->Stop(1);
  runners_[0]->Submit({.count = 100'000});
  runners_[2]->Submit({.count = 100'000});
  RunAll();
  const std::string words =
      "rank 1 of stage 2 (p1) did not take part in all-reduce 1 of 400000 bytes of float32 within "
      "3000 ms";
  EXPECT_EQ(runners_[0]->TryTake()->status.message(), words);
  EXPECT_EQ(runners_[2]->TryTake()->status.message(), words);
  group_->Continue(1);
  RunAll();
  EXPECT_EQ(group_->ended(1).message(), words);
}

TEST_F(InProcessGroupTest, WhatIsFullRefusesWithoutTakingANumber) {
  InProcessGroup::Options options;
  options.core.communicator.pending_max = 2;
  Make(Descriptions(2), options);
  for (int i = 0; i < 3; ++i) runners_[0]->Submit({.count = 4});
  // The third is refused at once, before the first two are done.
  EXPECT_EQ(runners_[0]->faults(), 1);
  for (int i = 0; i < 2; ++i) runners_[1]->Submit({.count = 4});
  RunAll();
  EXPECT_TRUE(runners_[0]->TryTake()->status.ok());
  EXPECT_TRUE(runners_[0]->TryTake()->status.ok());
  EXPECT_EQ(runners_[0]->TryTake()->status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(InProcessGroupTest, ACompletionMaySubmitAndAbort) {
  Make(Descriptions(2), {});
  std::vector<float> values[2] = {{1, 2, 3}, {4, 5, 6}};
  std::vector<absl::Status> ends;
  for (int rank = 0; rank < 2; ++rank) {
    Communicator& communicator = group_->rank(rank);
    const TensorView view = HostTensor(values[rank], 1);
    communicator.AllReduce(view, [&, view, rank](absl::Status first) {
      ends.push_back(std::move(first));
      group_->rank(rank).AllReduce(view, [&, rank](absl::Status second) {
        ends.push_back(std::move(second));
        if (rank == 1) group_->rank(rank).Abort(absl::CancelledError("enough"));
      });
    });
  }
  RunAll();
  ASSERT_EQ(ends.size(), 4);
  for (const absl::Status& end : ends) EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(values[0], (std::vector<float>{10, 14, 18}));
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(group_->ended(0).message(), "rank 1 of stage 2 (p1) has aborted the group: enough");
}

// One run of a seed: commands, delays, and maybe a rank that dies, stops or falls silent.
class Chaos : public InProcessGroupTest {
 protected:
  enum class Fate { kNone, kDies, kStops, kFallsSilent, kAborts };

  void Run(uint64_t seed) {
    Random random(seed);
    size_ = static_cast<int>(random.Between(2, 5));
    victim_ = static_cast<int>(random.Below(static_cast<uint64_t>(size_)));
    fate_ = static_cast<Fate>(random.Below(5));
    InProcessGroup::Options options;
    options.core.block_bytes = size_t{16} << random.Below(10);
    options.core.window_frames = 1 + random.Below(4);
    Make(Descriptions(size_), options);
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        group_->SetLatency(from, to, random.Between(0, 300));
      }
    }
    DrawCommands(random);
    const int64_t fate_at_us = random.Between(0, 20'000);
    silent_from_ = random.Below(commands_.size());
    for (int rank = 0; rank < size_; ++rank) {
      int64_t at_us = 0;
      for (size_t number = 0; number < commands_.size(); ++number) {
        at_us += random.Between(0, 2'000);
        const bool silent =
            rank == victim_ && fate_ == Fate::kFallsSilent && number >= silent_from_;
        if (!silent) events_.At(at_us, [this, rank, number] { SubmitAs(rank, number); });
      }
    }
    events_.At(fate_at_us, [this] { Strike(); });
    RunAll();
    Judge(seed);
  }

 private:
  void DrawCommands(Random& random) {
    for (int i = 0; i < 12; ++i) {
      constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                           CollectiveKind::kBroadcast, CollectiveKind::kSend};
      commands_.push_back({.kind = kKinds[random.Below(4)],
                           .count = random.Between(1, random.Chance(0.3) ? 3'000 : 40),
                           .type = kElementTypes[random.Below(2)],
                           .peer = static_cast<int>(random.Below(static_cast<uint64_t>(size_))),
                           .seed = random.Next() % 1000,
                           .lead = random.Between(0, 3)});
    }
  }

  // A drawn send goes from rank 0 to the peer, who receives; the others don't take part.
  std::optional<Command> PartOf(int rank, size_t number) const {
    Command command = commands_[number];
    if (command.kind != CollectiveKind::kSend || rank == 0) {
      if (command.kind == CollectiveKind::kSend && command.peer == 0) return std::nullopt;
      return command;
    }
    if (command.peer != rank) return std::nullopt;
    command.kind = CollectiveKind::kReceive;
    command.peer = 0;
    return command;
  }

  void SubmitAs(int rank, size_t number) {
    const bool gone = rank == victim_ && struck_ && (fate_ == Fate::kDies || fate_ == Fate::kStops);
    const std::optional<Command> command = PartOf(rank, number);
    if (!gone && command) runners_[rank]->Submit(*command);
    submitted_[rank] += !gone && command ? 1 : 0;
  }

  void Strike() {
    struck_ = true;
    if (fate_ == Fate::kDies) group_->Kill(victim_);
    if (fate_ == Fate::kStops) group_->Stop(victim_);
    if (fate_ == Fate::kAborts) group_->rank(victim_).Abort(absl::CancelledError("rewired"));
  }

  void Judge(uint64_t seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    for (int rank = 0; rank < size_; ++rank) {
      const bool gone = rank == victim_ && (fate_ == Fate::kDies || fate_ == Fate::kStops);
      EXPECT_EQ(runners_[rank]->faults(), 0);
      int taken = 0;
      for (size_t number = 0; number < commands_.size(); ++number) {
        const std::optional<Command> command = PartOf(rank, number);
        if (!command) continue;
        const std::optional<Outcome> outcome = runners_[rank]->TryTake();
        if (!outcome) break;
        ++taken;
        if (outcome->status.ok()) {
          EXPECT_EQ(outcome->hash, testing::HashOf(testing::ExpectedOutput(*command, size_)));
          continue;
        }
        EXPECT_NE(fate_, Fate::kNone) << outcome->status;
        EXPECT_EQ(RankOf(outcome->status), victim_) << outcome->status;
        EXPECT_EQ(outcome->status, group_->ended(rank));
      }
      if (!gone) {
        EXPECT_EQ(taken, submitted_[rank]) << "rank " << rank << " has something undone";
      }
    }
  }

  int size_ = 0;
  int victim_ = 0;
  Fate fate_ = Fate::kNone;
  bool struck_ = false;
  size_t silent_from_ = 0;
  std::vector<Command> commands_;
  int submitted_[8] = {};
};

class ChaosTest : public Chaos, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(ChaosTest, EveryCollectiveEndsOnceAndTheRightRankIsBlamed) { Run(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest, ::testing::Range<uint64_t>(1, 201));

}  // namespace
}  // namespace baton
