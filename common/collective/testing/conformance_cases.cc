// What every communicator promises (communicator.h), for groups of 1 to 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/collective/testing/group_harness.h"

namespace baton::testing {

namespace {

using ::testing::HasSubstr;

// Far longer than any case takes in which no rank is silent.
constexpr int64_t kPatientMs = 60'000;
constexpr int64_t kImpatientMs = 400;

class ConformanceTest : public ::testing::TestWithParam<int> {
 protected:
  static int size() { return GetParam(); }
  static int last() { return GetParam() - 1; }

  void Make(int64_t timeout_ms) { group_ = MakeGroup(size(), timeout_ms); }

  void SubmitToAll(const Command& command) {
    for (int rank = 0; rank < size(); ++rank) group_->Submit(rank, command);
  }
  void ExpectOfAll(const Command& command) {
    uint64_t expected = 0;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == 0) expected = HashOf(ExpectedOutput(command, size()));
      const Outcome outcome = group_->Take(rank);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status << " at rank " << rank;
      EXPECT_EQ(outcome.hash, expected) << command.ToText() << " at rank " << rank;
    }
  }
  void ExpectNoFaults() {
    for (int rank = 0; rank < size(); ++rank) EXPECT_EQ(group_->Faults(rank), 0) << rank;
  }

  std::unique_ptr<GroupHarness> group_;
};

std::vector<Command> EveryCommand(int size) {
  std::vector<Command> commands;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    for (const ElementType type : kElementTypes) {
      // One element, odd numbers, whole blocks, and what takes several steps or windows.
      for (const int64_t count : {1, 3, 1023, 32'768, 100'003}) {
        commands.push_back({.kind = kind,
                            .count = count,
                            .type = type,
                            .peer = kind == CollectiveKind::kBroadcast ? (size - 1) / 2 : 0,
                            .seed = commands.size() + 1,
                            .lead = count % 2});
      }
    }
  }
  return commands;
}

TEST_P(ConformanceTest, GivesWhatAPlainLoopGives) {
  Make(kPatientMs);
  for (const Command& command : EveryCommand(size())) {
    SubmitToAll(command);
    ExpectOfAll(command);
  }
  ExpectNoFaults();
}

TEST_P(ConformanceTest, DoesWhatIsSubmittedAtOnceInOrder) {
  Make(kPatientMs);
  std::vector<Command> commands;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    commands.push_back(
        {.kind = seed % 3 == 0 ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce,
         .count = static_cast<int64_t>(seed * seed),
         .seed = seed});
  }
  for (int rank = 0; rank < size(); ++rank) {
    for (const Command& command : commands) group_->Submit(rank, command);
  }
  for (const Command& command : commands) ExpectOfAll(command);
  ExpectNoFaults();
}

// What row-parallel chunking stands on.
TEST_P(ConformanceTest, ChunksSumToTheBitsOfTheWhole) {
  Make(kPatientMs);
  constexpr int64_t kCount = 200'000;
  for (const ElementType type : kElementTypes) {
    const std::vector<std::byte> whole =
        ExpectedOutput({.count = kCount, .type = type, .seed = 5}, size());
    for (const int64_t chunks : {1, 3, 8}) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = kCount * chunk / chunks;
        const int64_t count = kCount * (chunk + 1) / chunks - begin;
        SubmitToAll({.count = count, .type = type, .seed = 5, .skip = begin, .lead = chunk});
        const auto at = static_cast<std::ptrdiff_t>(ElementBytes(type));
        const std::vector<std::byte> expected(whole.begin() + begin * at,
                                              whole.begin() + (begin + count) * at);
        for (int rank = 0; rank < size(); ++rank) {
          EXPECT_EQ(group_->Take(rank).hash, HashOf(expected)) << chunk << " of " << chunks;
        }
      }
    }
  }
}

TEST_P(ConformanceTest, SendsFromOneToTheOther) {
  if (size() == 1) GTEST_SKIP() << "nobody to send to";
  Make(kPatientMs);
  for (const int64_t count : {1, 77, 300'000}) {
    for (int to = 1; to < size(); ++to) {
      Command command = {.kind = CollectiveKind::kSend, .count = count, .peer = to};
      group_->Submit(0, command);
      command.kind = CollectiveKind::kReceive;
      command.peer = 0;
      group_->Submit(to, command);
      EXPECT_TRUE(group_->Take(0).status.ok());
      EXPECT_EQ(group_->Take(to).hash, HashOf(InputOf(command, 0))) << count;
    }
  }
  // Between others' sends all ranks still agree on the collectives.
  const Command command = {.count = 10};
  SubmitToAll(command);
  ExpectOfAll(command);
}

TEST_P(ConformanceTest, RefusesWhatNoGroupCanDoAndGoesOn) {
  Make(kPatientMs);
  for (int rank = 0; rank < size(); ++rank) {
    group_->Submit(rank, {.count = 0});
    EXPECT_EQ(group_->Take(rank).status.code(), absl::StatusCode::kInvalidArgument);
    group_->Submit(rank, {.kind = CollectiveKind::kBroadcast, .peer = size()});
    EXPECT_EQ(group_->Take(rank).status.code(), absl::StatusCode::kInvalidArgument);
    group_->Submit(rank, {.kind = CollectiveKind::kSend, .peer = rank});
    EXPECT_EQ(group_->Take(rank).status.code(), absl::StatusCode::kInvalidArgument);
  }
  const Command command = {.count = 10};
  SubmitToAll(command);
  ExpectOfAll(command);
}

TEST_P(ConformanceTest, AnAbortEndsEveryRankWithItsWords) {
  Make(kPatientMs);
  // All but the last wait for it.
  for (int rank = 0; rank < last(); ++rank) {
    group_->Submit(rank, {.count = 100'000});
    group_->Submit(rank, {.count = 10});
  }
  group_->Abort(last(), absl::UnavailableError("the chain is rewired"));
  group_->Submit(last(), {.count = 100'000});
  for (int rank = 0; rank < size(); ++rank) {
    for (int command = 0; command < (rank == last() ? 1 : 2); ++command) {
      const absl::Status status = group_->Take(rank).status;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(status.message(), absl::StrCat("rank ", last(), " of stage 1 (m", last(),
                                               ") has aborted the group: the chain is rewired"));
      EXPECT_EQ(RankOf(status), last());
    }
  }
  ExpectNoFaults();
}

TEST_P(ConformanceTest, ASilentRankIsNamedEverywhere) {
  if (size() == 1) GTEST_SKIP() << "nobody to miss";
  Make(kImpatientMs);
  const Command first = {.count = 10};
  SubmitToAll(first);
  ExpectOfAll(first);
  for (int rank = 0; rank < last(); ++rank) group_->Submit(rank, {.count = 70'000});
  for (int rank = 0; rank < last(); ++rank) {
    const absl::Status status = group_->Take(rank).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(),
              absl::StrCat("rank ", last(), " of stage 1 (m", last(), ") did not take part in ",
                           "all-reduce 2 of 280000 bytes of float32 within 400 ms"));
    EXPECT_EQ(RankOf(status), last());
  }
  // A rank that is late is told that the others waited for it.
  absl::Status late;
  while (late.ok()) {  // What the others have sent before may still do for one.
    group_->Submit(last(), {.count = 70'000});
    late = group_->Take(last()).status;
  }
  EXPECT_EQ(RankOf(late), last()) << late;
  ExpectNoFaults();
}

TEST_P(ConformanceTest, RanksThatDisagreeSayWhatEachIsAt) {
  if (size() == 1) GTEST_SKIP() << "nobody to disagree with";
  const struct {
    Command others;
    Command last;
    std::string words;
  } kCases[] = {
      {{.count = 8}, {.count = 9}, "all-reduce 1 of 36 bytes of float32"},
      {{.count = 8},
       {.kind = CollectiveKind::kAllGather, .count = 8},
       "all-gather 1 of 32 bytes of float32"},
      {{.count = 8}, {.count = 16, .type = ElementType::kBFloat16}, "32 bytes of bfloat16"},
      {{.kind = CollectiveKind::kBroadcast, .count = 8},
       {.count = 8},
       "all-reduce 1 of 32 bytes of float32"},
  };
  for (const auto& disagreement : kCases) {
    Make(kPatientMs);
    for (int rank = 0; rank < size(); ++rank) {
      group_->Submit(rank, rank == last() ? disagreement.last : disagreement.others);
    }
    // A broadcast's root hears of it too late, for which the next collective is there.
    SubmitToAll({.count = 8});
    for (int rank = 0; rank < size(); ++rank) {
      absl::Status status = group_->Take(rank).status;
      if (status.ok()) status = group_->Take(rank).status;
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(disagreement.words));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", last(), " of stage 1 (m", last(), ")")));
    }
  }
}

TEST_P(ConformanceTest, WhoHasLeftIsMissedByTheNextCollective) {
  if (size() == 1) GTEST_SKIP() << "nobody to miss";
  Make(kPatientMs);
  const Command command = {.count = 100'000};
  SubmitToAll(command);
  ExpectOfAll(command);
  group_->Leave(last());
  for (int rank = 0; rank < last(); ++rank) group_->Submit(rank, command);
  for (int rank = 0; rank < last(); ++rank) {
    const absl::Status status = group_->Take(rank).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(RankOf(status), last()) << status;
  }
}

TEST_P(ConformanceTest, ADeadRankIsNamedByAllWhoLive) {
  Make(kPatientMs);
  if (size() == 1 || !group_->mortal()) GTEST_SKIP() << "nobody to kill";
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != 1) group_->Submit(rank, {.count = 1'000'000});
  }
  group_->Kill(1);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == 1) continue;
    const absl::Status status = group_->Take(rank).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of stage 1 (m1) is gone"));
    EXPECT_EQ(RankOf(status), 1);
    EXPECT_EQ(group_->Faults(rank), 0);
  }
}

TEST_P(ConformanceTest, AStoppedRankIsNamedByAllWhoGoOn) {
  Make(kImpatientMs);
  if (size() == 1 || !group_->mortal()) GTEST_SKIP() << "nobody to stop";
  const Command first = {.count = 10};
  SubmitToAll(first);
  ExpectOfAll(first);
  group_->Stop(1);
  // More than the sockets take, so that the senders' halves get stuck too.
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != 1) group_->Submit(rank, {.count = 4'000'000});
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == 1) continue;
    const absl::Status status = group_->Take(rank).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(RankOf(status), 1) << status;
    EXPECT_EQ(group_->Faults(rank), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ConformanceTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace baton::testing
