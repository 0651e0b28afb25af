#include "common/kv/lease_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/kv/lease_table_fixture.h"

namespace baton {
namespace {

TEST_F(LeaseTableTest, CommitsWhenAllHasArrivedAndGoesToRest) {
  Place(Header(kFront, 0, 3));
  Place(Header(kFront, 3, 1));
  EXPECT_EQ(Committed(Commit(kFront, 2000 + 2003)), std::nullopt);
  Place(Header(kBack, 0, 4));
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), std::nullopt);
  const auto committed = OnlyEvent<KvCommitted>();
  EXPECT_EQ(committed.slot, 1u);
  EXPECT_EQ(committed.generation, 1u);
  EXPECT_EQ(committed.first_token, kToken);
  EXPECT_EQ(committed.bytes, 4 * kLayout.BandBytes({0, 6}));
  table_.Revoke(1, 1, events_);
  EXPECT_EQ(OnlyEvent<KvDrained>().generation, 1u);
  EXPECT_TRUE(table_.AtRest());
}

TEST_F(LeaseTableTest, PlacementNamesTheDecodesOwnPages) {
  KvRefusal refusal{};
  const KvDataHeader header = Header(kBack, 1, 2);
  const auto placement = table_.OnData(header, header.bytes, kNowUs, refusal);
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->pages, (std::vector<int>{11, 12}));
  EXPECT_EQ(placement->layers, kBack.layers);
  EXPECT_EQ(placement->page_bytes, kLayout.BandBytes(kBack.layers));
  EXPECT_EQ(placement->offset_bytes, 0u);
  EXPECT_NE(placement->receipt, 0u);
}

TEST_F(LeaseTableTest, CommitMayOvertakeTheData) {
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), std::nullopt);
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  Place(Header(kBack, 0, 4));
  EXPECT_TRUE(events_.empty());
  Place(Header(kFront, 0, 4));
  OnlyEvent<KvCommitted>();
}

TEST_F(LeaseTableTest, RefusesEachKindOfWrongHeader) {
  KvDataHeader header = Header(kFront, 0, 1);
  header.slot = 2;
  EXPECT_EQ(Refused(header), KvRefusal::kUnknownSlot) << "never granted";
  header.slot = 4;
  EXPECT_EQ(Refused(header), KvRefusal::kUnknownSlot) << "outside the table";
  header = Header(kFront, 0, 1);
  header.generation = 2;
  EXPECT_EQ(Refused(header), KvRefusal::kStaleGeneration);
  header = Header(kFront, 0, 1);
  header.decode_incarnation = 99;
  EXPECT_EQ(Refused(header), KvRefusal::kWrongIncarnation);
  header = Header(kFront, 0, 1);
  header.writer_incarnation = kBack.instance.incarnation;
  EXPECT_EQ(Refused(header), KvRefusal::kNotAWriter);
  header = Header(kFront, 0, 1);
  header.layers = {0, 3};
  EXPECT_EQ(Refused(header), KvRefusal::kNotAWriter);
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{
           {0, 5}, {4, 1}, {-1, 2}, {0, 0}, {2, -1}, {std::numeric_limits<int>::max(), 2}}) {
    header = Header(kFront, 0, 1);
    header.first_page = first;
    header.page_count = count;
    EXPECT_EQ(Refused(header), KvRefusal::kBadRange) << first << " " << count;
  }
  header = Header(kFront, 0, 1);
  EXPECT_EQ(Refused(header, header.bytes - 1), KvRefusal::kBadLength);
  header.bytes += 1;
  EXPECT_EQ(Refused(header), KvRefusal::kBadLength);
  EXPECT_TRUE(events_.empty()) << "what is refused ends nothing";
  PlaceAll();
}

TEST_F(LeaseTableTest, RefusesPagesThatArriveTwice) {
  const uint64_t receipt = Begin(Header(kFront, 1, 2));
  EXPECT_EQ(Refused(Header(kFront, 2, 1)), KvRefusal::kDuplicate) << "arriving";
  EXPECT_EQ(Refused(Header(kFront, 0, 4)), KvRefusal::kDuplicate) << "overlaps";
  End(receipt, Header(kFront, 1, 2).checksum);
  EXPECT_EQ(Refused(Header(kFront, 1, 1)), KvRefusal::kDuplicate) << "arrived";
  EXPECT_EQ(Refused(Header(kBack, 1, 1)), std::nullopt) << "other layers are another run";
}

TEST_F(LeaseTableTest, RefusesEachKindOfWrongCommit) {
  KvCommit commit = Commit(kFront, kFrontSum);
  commit.generation = 7;
  EXPECT_EQ(Committed(commit), KvRefusal::kStaleGeneration);
  commit = Commit(kFront, kFrontSum);
  commit.slot = 9;
  EXPECT_EQ(Committed(commit), KvRefusal::kUnknownSlot);
  commit = Commit(kFront, kFrontSum);
  commit.decode_incarnation = 9;
  EXPECT_EQ(Committed(commit), KvRefusal::kWrongIncarnation);
  commit = Commit(kFront, kFrontSum);
  commit.writer_incarnation = 9;
  EXPECT_EQ(Committed(commit), KvRefusal::kNotAWriter);
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum + 1)), KvRefusal::kDuplicate);
  EXPECT_TRUE(events_.empty());
}

TEST_F(LeaseTableTest, ACommitOfAnotherPromptFailsTheGrantAtOnce) {
  KvCommit commit = Commit(kFront, kFrontSum);
  commit.page_count = 3;
  EXPECT_EQ(Committed(commit), KvRefusal::kBadRange);
  EXPECT_EQ(InstanceOf(OnlyEvent<KvFailed>().status), "prefill-0");
  EXPECT_EQ(OnlyReceipt(), Receipt(kFront, KvReceiptKind::kRefused));
}

TEST_F(LeaseTableTest, FirstTokenIsTheLastStagesAndRequired) {
  PlaceAll();
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  KvCommit commit = Commit(kBack, kBackSum);
  commit.has_first_token = false;
  EXPECT_EQ(Committed(commit), KvRefusal::kBadCommit);
  EXPECT_EQ(InstanceOf(OnlyEvent<KvFailed>().status), "prefill-1");
}

TEST_F(LeaseTableTest, AnEarlierStageHasNoFirstToken) {
  KvCommit commit = Commit(kFront, kFrontSum);
  commit.has_first_token = true;
  EXPECT_EQ(Committed(commit), KvRefusal::kBadCommit);
  OnlyEvent<KvFailed>();
}

TEST_F(LeaseTableTest, OtherBytesThanAnnouncedFailTheGrant) {
  const KvDataHeader header = Header(kFront, 0, 4);
  End(Begin(header), header.checksum + 1);
  const auto failed = OnlyEvent<KvFailed>();
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(LegOf(failed.status), "prefill");
  EXPECT_EQ(Refused(Header(kBack, 0, 4)), KvRefusal::kConsumed);
}

TEST_F(LeaseTableTest, CommitOfOtherDataFailsTheGrant) {
  PlaceAll();
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum + 1)), std::nullopt);
  EXPECT_EQ(OnlyEvent<KvFailed>().status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), KvRefusal::kConsumed);
}

TEST_F(LeaseTableTest, BrokenTransferFailsTheGrant) {
  End(Begin(Header(kFront, 0, 4)), 0, absl::UnavailableError("endpoint reset"));
  EXPECT_EQ(OnlyEvent<KvFailed>().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(LeaseTableTest, AfterTheCommitNothingIsTaken) {
  PlaceAll();
  Committed(Commit(kFront, kFrontSum));
  Committed(Commit(kBack, kBackSum));
  OnlyEvent<KvCommitted>();
  EXPECT_EQ(Refused(Header(kFront, 0, 1)), KvRefusal::kConsumed);
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), KvRefusal::kConsumed);
  table_.Tick(100 * kLeaseUs, events_);
  EXPECT_TRUE(events_.empty()) << "writers are no longer needed";
}

TEST_F(LeaseTableTest, RevokedGrantDrainsWhenTheLastPlacementEnds) {
  const uint64_t first = Begin(Header(kFront, 0, 2));
  const uint64_t second = Begin(Header(kBack, 0, 4));
  table_.Revoke(1, 1, events_);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(table_.draining(), 1);
  EXPECT_EQ(table_.active_grants(), 0);
  EXPECT_EQ(Refused(Header(kFront, 2, 1)), KvRefusal::kStaleGeneration);
  End(second, 0, absl::CancelledError("gone"));
  EXPECT_TRUE(events_.empty()) << "one placement may still write";
  End(first, Header(kFront, 0, 2).checksum);
  EXPECT_EQ(OnlyEvent<KvDrained>().generation, 1u);
  EXPECT_TRUE(table_.AtRest());
  table_.Revoke(1, 1, events_);
  EXPECT_TRUE(events_.empty()) << "exactly one Drained";
}

TEST_F(LeaseTableTest, RevokeOfAnotherGenerationIsNothing) {
  table_.Revoke(1, 2, events_);
  table_.Revoke(0, 1, events_);
  table_.Revoke(77, 1, events_);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(table_.active_grants(), 1);
}

TEST_F(LeaseTableTest, LateDataOfAnOldGenerationNeverReachesTheNewOne) {
  table_.Revoke(1, 1, events_);
  OnlyEvent<KvDrained>();
  EXPECT_EQ(Refused(Header(kFront, 0, 1)), KvRefusal::kStaleGeneration) << "slot is free";
  Grant(1, 2, {20, 21, 22, 23});
  EXPECT_EQ(Refused(Header(kFront, 0, 1)), KvRefusal::kStaleGeneration) << "slot is taken again";
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), KvRefusal::kStaleGeneration);
}

TEST_F(LeaseTableTest, SilentWriterEndsTheGrant) {
  table_.OnHeartbeat(kFront.instance, kLeaseUs - 1);
  table_.OnHeartbeat({"prefill-0", 999}, 2 * kLeaseUs);
  EXPECT_EQ(table_.NextDeadlineUs(), kLeaseUs) << "kBack was heard of at the grant alone";
  table_.Tick(kLeaseUs - 1, events_);
  EXPECT_TRUE(events_.empty());
  table_.Tick(kLeaseUs, events_);
  const auto failed = OnlyEvent<KvFailed>();
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(InstanceOf(failed.status), "prefill-1");
  EXPECT_EQ(table_.NextDeadlineUs(), kNeverUs);
  table_.Tick(10 * kLeaseUs, events_);
  EXPECT_TRUE(events_.empty()) << "a grant fails once";
}

TEST_F(LeaseTableTest, WhateverArrivesOfAWriterIsASignOfItsLife) {
  KvRefusal refusal{};
  const KvDataHeader front = Header(kFront, 0, 3);
  const auto placement = table_.OnData(front, front.bytes, kLeaseUs / 2, refusal);
  ASSERT_TRUE(placement.ok());
  ASSERT_TRUE(table_.OnCommit(Commit(kBack, kBackSum), kLeaseUs / 4, refusal, events_).ok());
  EXPECT_EQ(table_.NextDeadlineUs(), kLeaseUs / 4 + kLeaseUs) << "kBack's, by its commit";
  table_.OnHeartbeat(kBack.instance, 4 * kLeaseUs);
  EXPECT_EQ(table_.NextDeadlineUs(), kLeaseUs / 2 + kLeaseUs) << "kFront's, by a run's start";
  table_.OnPlaced(placement->receipt, absl::OkStatus(), front.checksum, kLeaseUs, events_);
  EXPECT_EQ(table_.NextDeadlineUs(), 2 * kLeaseUs) << "and by its end";
  table_.Tick(2 * kLeaseUs, events_);
  EXPECT_EQ(InstanceOf(OnlyEvent<KvFailed>().status), "prefill-0");
}

// A window of data for a prompt that was aborted can fill a slow connection for longer than a
// lease, with the heartbeats behind it.
TEST_F(LeaseTableTest, DataOfAGrantThatHasEndedIsASignOfLifeToo) {
  Grant(2, 2, {20});
  KvRefusal refusal{};
  const KvDataHeader late = Header(kFront, 0, 3);
  const auto placement = table_.OnData(late, late.bytes, 1, refusal);
  ASSERT_TRUE(placement.ok());
  table_.Revoke(1, 1, events_);
  table_.OnHeartbeat(kBack.instance, 9 * kLeaseUs);
  EXPECT_EQ(table_.NextDeadlineUs(), 1 + kLeaseUs);
  table_.OnPlaced(placement->receipt, absl::OkStatus(), late.checksum, 2, events_);
  EXPECT_EQ(table_.NextDeadlineUs(), 2 + kLeaseUs);
  EXPECT_FALSE(table_.OnData(late, late.bytes, 3, refusal).ok());
  EXPECT_EQ(table_.NextDeadlineUs(), 3 + kLeaseUs);
  EXPECT_FALSE(table_.OnCommit(Commit(kFront, kFrontSum), 4, refusal, events_).ok());
  EXPECT_EQ(table_.NextDeadlineUs(), 4 + kLeaseUs);
  KvDataHeader former_life = late;
  former_life.writer_incarnation += 1000;
  EXPECT_FALSE(table_.OnData(former_life, late.bytes, 5, refusal).ok());
  EXPECT_EQ(table_.NextDeadlineUs(), 4 + kLeaseUs) << "another process's";
}

// A control message may overtake the data that was sent before it.
TEST_F(LeaseTableTest, ACommitBeforeItsDataCompletesWhenTheLastByteArrives) {
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), std::nullopt);
  const KvDataHeader last = Header(kBack, 0, 4);
  const uint64_t receipt = Begin(last);
  Place(Header(kFront, 0, 4));
  EXPECT_TRUE(events_.empty());
  End(receipt, last.checksum);
  OnlyEvent<KvCommitted>();
}

// Pages of kBack's layers take two parts and a half, those of kFront's one and a bit.
class LargePageTest : public LeaseTableTest {
 protected:
  LargePageTest() : LeaseTableTest(kPart) {}
  static constexpr size_t kPart = 3 * 1024 / 2;  // A layer of a page has 1,024 bytes.
  static KvDataHeader Part(const KvWriter& writer, int page, int part) {
    KvDataHeader header = Header(writer, page, 1);
    header.part = part;
    header.bytes =
        std::min(kPart, kLayout.BandBytes(writer.layers) - static_cast<size_t>(part) * kPart);
    return header;
  }
};

TEST_F(LargePageTest, PagesArriveInParts) {
  ASSERT_EQ(kLayout.BytesPerLayer(), 1024u);
  KvRefusal refusal{};
  const KvDataHeader header = Part(kBack, 2, 2);
  EXPECT_EQ(header.bytes, 1024u);
  const auto placement = table_.OnData(header, header.bytes, 0, refusal);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->pages, std::vector<int>{12});
  EXPECT_EQ(placement->offset_bytes, 2 * kPart);
  EXPECT_EQ(placement->page_bytes, 1024u);
  EXPECT_EQ(Refused(header), KvRefusal::kDuplicate);
  End(placement->receipt, header.checksum);
  uint64_t back_sum = header.checksum;
  uint64_t front_sum = 0;
  for (int page = 0; page < 4; ++page) {
    for (int part = 0; part < 3; ++part) {
      if (page == 2 && part == 2) continue;
      Place(Part(kBack, page, part));
      back_sum += Part(kBack, page, part).checksum;
    }
    for (int part = 0; part < 2; ++part) {
      Place(Part(kFront, page, part));
      front_sum += Part(kFront, page, part).checksum;
    }
  }
  EXPECT_EQ(Committed(Commit(kFront, front_sum)), std::nullopt);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(Committed(Commit(kBack, back_sum)), std::nullopt);
  EXPECT_EQ(OnlyEvent<KvCommitted>().bytes, 4 * kLayout.BandBytes({0, 6}));
}

TEST_F(LargePageTest, RefusesPartsThatAPageDoesNotHave) {
  KvDataHeader header = Part(kBack, 0, 0);
  header.part = 3;
  EXPECT_EQ(Refused(header), KvRefusal::kBadRange);
  header.part = -1;
  EXPECT_EQ(Refused(header), KvRefusal::kBadRange);
  EXPECT_EQ(Refused(Header(kBack, 0, 2)), KvRefusal::kBadRange) << "whole pages of several parts";
  header = Part(kBack, 0, 2);
  header.bytes = kPart;
  EXPECT_EQ(Refused(header), KvRefusal::kBadLength) << "the last part is shorter";
}

TEST_F(LeaseTableTest, RefusesPartsOfWholePages) {
  KvDataHeader header = Header(kFront, 0, 1);
  header.part = 1;
  EXPECT_EQ(Refused(header), KvRefusal::kBadRange);
}

TEST_F(LeaseTableTest, WriterThatHasDeliveredMayBeSilent) {
  Place(Header(kFront, 0, 4));
  Committed(Commit(kFront, kFrontSum));
  table_.OnHeartbeat(kBack.instance, kLeaseUs);
  table_.Tick(kLeaseUs + 1, events_);
  EXPECT_TRUE(events_.empty());
}

TEST_F(LeaseTableTest, NewGrantsDoNotRenewASilentWritersOldOnes) {
  Grant(2, 2, {20}, kNeverUs, kLeaseUs - 1);
  table_.Tick(kLeaseUs, events_);
  EXPECT_EQ(OnlyEvent<KvFailed>().slot, 1u);
  EXPECT_EQ(table_.NextDeadlineUs(), 2 * kLeaseUs - 1);
}

TEST_F(LeaseTableTest, DeadlineEndsTheGrant) {
  Grant(0, 5, {1}, 1000, 10);
  EXPECT_EQ(table_.NextDeadlineUs(), 1000);
  table_.Tick(1000, events_);
  const auto failed = OnlyEvent<KvFailed>();
  EXPECT_EQ(failed.slot, 0u);
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LeaseTableTest, AnyOrderOfArrivalCommitsExactlyOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    LeaseTable table({.self = kSelf, .layout = kLayout, .slots = 4, .writer_lease_us = kLeaseUs});
    table.Grant({1, 1, {10, 11, 12, 13}, {kFront, kBack}, kNeverUs}, 0);
    Random random(seed);
    std::vector<KvDataHeader> headers;
    for (int page = 0; page < 4; ++page) {
      headers.push_back(Header(kFront, page, 1));
      headers.push_back(Header(kBack, page, 1));
    }
    std::vector<std::pair<uint64_t, uint64_t>> under_way;  // Receipt, checksum.
    std::vector<KvCommit> commits{Commit(kFront, 8006), Commit(kBack, 24006)};
    std::vector<LeaseEvent> events;
    KvRefusal refusal{};
    while (!headers.empty() || !under_way.empty() || !commits.empty()) {
      EXPECT_TRUE(events.empty());
      const uint64_t choice = random.Below(3);
      if (choice == 0 && !headers.empty()) {
        const size_t pick = random.Below(headers.size());
        const auto placement = table.OnData(headers[pick], headers[pick].bytes, 0, refusal);
        ASSERT_TRUE(placement.ok()) << placement.status();
        under_way.emplace_back(placement->receipt, headers[pick].checksum);
        headers.erase(headers.begin() + static_cast<long>(pick));
      } else if (choice == 1 && !under_way.empty()) {
        const size_t pick = random.Below(under_way.size());
        table.OnPlaced(under_way[pick].first, absl::OkStatus(), under_way[pick].second, 0, events);
        under_way.erase(under_way.begin() + static_cast<long>(pick));
      } else if (choice == 2 && !commits.empty()) {
        ASSERT_TRUE(table.OnCommit(commits.back(), 0, refusal, events).ok());
        commits.pop_back();
      }
      ASSERT_TRUE(table.CheckInvariants().ok()) << table.CheckInvariants();
    }
    ASSERT_EQ(events.size(), 1u) << "seed " << seed;
    EXPECT_TRUE(std::holds_alternative<KvCommitted>(events[0])) << "seed " << seed;
  }
}

using LeaseTableDeathTest = LeaseTableTest;

TEST_F(LeaseTableDeathTest, BreachesOfTheContractEndTheProcess) {
  EXPECT_DEATH(Grant(1, 2, {20}), "is taken");
  EXPECT_DEATH(Grant(2, 1, {20}), "generation 1 after 1");
  EXPECT_DEATH(table_.OnPlaced(77, absl::OkStatus(), 0, 0, events_), "receipt 77");
}

// Pages before the first one were there: they are not waited for, and not written.
TEST_F(LeaseTableTest, AGrantMayBeginBehindPagesThatAreThere) {
  table_.Grant({.slot = 2,
                .generation = 2,
                .pages = {20, 21, 22, 23},
                .writers = {kFront, kBack},
                .first_page = 3},
               0);
  const auto header = [](const KvWriter& writer, int first_page, int page_count) {
    KvDataHeader of_grant = Header(writer, first_page, page_count);
    of_grant.slot = 2;
    of_grant.generation = 2;
    return of_grant;
  };
  EXPECT_EQ(Refused(header(kFront, 2, 1)), KvRefusal::kBadRange);
  EXPECT_EQ(Refused(header(kFront, 2, 2)), KvRefusal::kBadRange);
  KvRefusal refusal{};
  const KvDataHeader front = header(kFront, 3, 1);
  const auto placement = table_.OnData(front, front.bytes, kNowUs, refusal);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->pages, (std::vector<int>{23}));
  End(placement->receipt, front.checksum);
  EXPECT_EQ(Refused(front), KvRefusal::kDuplicate);
  const KvDataHeader back = header(kBack, 3, 1);
  Place(back);
  for (const auto& [writer, sum] : {std::pair(kFront, front.checksum), {kBack, back.checksum}}) {
    EXPECT_TRUE(events_.empty());
    KvCommit commit = Commit(writer, sum);
    commit.slot = 2;
    commit.generation = 2;
    EXPECT_EQ(Committed(commit), std::nullopt);
  }
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(std::get<KvCommitted>(events_[0]).bytes, front.bytes + back.bytes);
}

}  // namespace
}  // namespace baton
