// What ends a grant apart from its data (silence, deadlines, revocation), and the receipts of
// writers.
#include <gtest/gtest.h>

#include <optional>

#include "common/base/status.h"
#include "common/kv/lease_table_fixture.h"

namespace baton {
namespace {

// ---- Receipts ----

TEST_F(LeaseTableTest, AWriterIsToldWhenItsPartIsCompleteWhateverTheOthersDo) {
  Place(Header(kFront, 0, 4));
  EXPECT_TRUE(table_.TakeReceipts().empty()) << "nothing is complete without its commit";
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(OnlyReceipt(), Receipt(kFront, KvReceiptKind::kComplete));
  EXPECT_EQ(Committed(Commit(kBack, kBackSum)), std::nullopt);
  EXPECT_TRUE(table_.TakeReceipts().empty()) << "its data may be on the way";
  Place(Header(kBack, 0, 4));
  EXPECT_EQ(OnlyReceipt(), Receipt(kBack, KvReceiptKind::kComplete));
  OnlyEvent<KvCommitted>();
}

TEST_F(LeaseTableTest, ARepeatedCommitAsksAndChangesNothing) {
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  Place(Header(kFront, 0, 1));
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(OnlyReceipt(), Receipt(kFront, KvReceiptKind::kMissing, 3));
  const uint64_t receipt = Begin(Header(kFront, 1, 3));
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(OnlyReceipt(), Receipt(kFront, KvReceiptKind::kMissing, 3)) << "arriving, not here";
  End(receipt, Header(kFront, 1, 3).checksum);
  table_.TakeReceipts();
  EXPECT_EQ(
      Committed(Commit(kFront, Header(kFront, 0, 1).checksum + Header(kFront, 1, 3).checksum)),
      KvRefusal::kConsumed)
      << "the sum that it had named was another";
}

TEST_F(LeaseTableTest, ACompleteWriterThatAsksAgainIsToldAgain) {
  Place(Header(kFront, 0, 4));
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  table_.TakeReceipts();  // Lost on its way.
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(OnlyReceipt(), Receipt(kFront, KvReceiptKind::kComplete));
  EXPECT_TRUE(events_.empty());
}

TEST_F(LeaseTableTest, WhoAsksAboutAGrantThatHasEndedHearsThatItIsOver) {
  PlaceAll();
  Committed(Commit(kFront, kFrontSum));
  Committed(Commit(kBack, kBackSum));
  table_.TakeReceipts();
  Committed(Commit(kBack, kBackSum));
  EXPECT_EQ(OnlyReceipt(), Receipt(kBack, KvReceiptKind::kOver)) << "committed";
  table_.Revoke(1, 1, events_);
  Committed(Commit(kBack, kBackSum));
  EXPECT_EQ(OnlyReceipt(), Receipt(kBack, KvReceiptKind::kOver)) << "revoked";
  Grant(1, 2, {1, 2, 3, 4});
  Committed(Commit(kBack, kBackSum));
  EXPECT_EQ(OnlyReceipt(), Receipt(kBack, KvReceiptKind::kOver)) << "granted to another";
}

TEST_F(LeaseTableTest, AWriterWhosePartIsWrongIsNotToldThatItIsComplete) {
  Place(Header(kFront, 0, 4));
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum + 1)), std::nullopt);
  EXPECT_TRUE(table_.TakeReceipts().empty());
  EXPECT_EQ(OnlyEvent<KvFailed>().status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(LeaseTableTest, EveryRefusedCommitIsAnswered) {
  const auto told = [this](const KvCommit& commit) {
    EXPECT_TRUE(Committed(commit).has_value());
    return OnlyReceipt().kind;
  };
  KvCommit commit = Commit(kFront, kFrontSum);
  commit.slot = 3;
  EXPECT_EQ(told(commit), KvReceiptKind::kRefused) << "never granted";
  commit = Commit(kFront, kFrontSum);
  commit.decode_incarnation = 9;
  EXPECT_EQ(told(commit), KvReceiptKind::kRefused);
  commit = Commit(kFront, kFrontSum);
  commit.writer_incarnation = 9;
  EXPECT_EQ(told(commit), KvReceiptKind::kRefused);
  commit = Commit(kFront, kFrontSum);
  commit.layers = {0, 3};
  EXPECT_EQ(told(commit), KvReceiptKind::kRefused);
  commit = Commit(kFront, kFrontSum);
  commit.generation = 2;
  EXPECT_EQ(told(commit), KvReceiptKind::kOver);
  EXPECT_EQ(Committed(Commit(kFront, kFrontSum)), std::nullopt);
  EXPECT_EQ(told(Commit(kFront, kFrontSum + 1)), KvReceiptKind::kRefused) << "a second one";
  EXPECT_TRUE(events_.empty());
}

// A writer that is another life of a process, or speaks to another life of this one.
TEST_F(LeaseTableTest, BothIncarnationsAreChecked) {
  for (const KvWriter& writer : {kFront, kBack}) {
    KvDataHeader header = Header(writer, 0, 1);
    ++header.writer_incarnation;
    EXPECT_NE(Refused(header), std::nullopt);
    header = Header(writer, 0, 1);
    ++header.decode_incarnation;
    EXPECT_EQ(Refused(header), KvRefusal::kWrongIncarnation);
    KvCommit commit = Commit(writer, 0);
    ++commit.writer_incarnation;
    EXPECT_NE(Committed(commit), std::nullopt);
    commit = Commit(writer, 0);
    --commit.decode_incarnation;
    EXPECT_EQ(Committed(commit), KvRefusal::kWrongIncarnation);
  }
  EXPECT_TRUE(events_.empty());
}

TEST_F(LeaseTableTest, LaterRunsGoToTheirOwnPages) {
  const auto pages = [this](int first, int count) {
    KvRefusal refusal{};
    const KvDataHeader header = Header(kFront, first, count);
    const auto placement = table_.OnData(header, header.bytes, kNowUs, refusal);
    return placement.ok() ? placement->pages : std::vector<int>{};
  };
  EXPECT_EQ(pages(0, 1), std::vector<int>{10});
  EXPECT_EQ(pages(1, 2), (std::vector<int>{11, 12}));
  EXPECT_EQ(pages(3, 1), std::vector<int>{13});
}

TEST_F(LeaseTableTest, ABrokenTransferIsNoSignOfLife) {
  Grant(2, 2, {20});
  const uint64_t receipt = Begin(Header(kFront, 0, 4));
  table_.OnHeartbeat(kBack.instance, 9 * kLeaseUs);
  const int64_t due_us = table_.NextDeadlineUs();
  table_.OnPlaced(receipt, absl::UnavailableError("reset"), 0, kLeaseUs / 2, events_);
  OnlyEvent<KvFailed>();
  EXPECT_EQ(table_.NextDeadlineUs(), due_us) << "of the other grant";
}

TEST_F(LeaseTableTest, TwoSilentWritersEndAGrantOnce) {
  table_.Tick(kLeaseUs, events_);
  EXPECT_EQ(InstanceOf(OnlyEvent<KvFailed>().status), "prefill-0");
}

// It may live and be out of reach; one that was heard has fallen silent.
TEST_F(LeaseTableTest, WhomNothingCameFromSinceTheGrantIsUnconnected) {
  table_.OnHeartbeat(kBack.instance, 1);
  table_.Tick(kLeaseUs, events_);
  EXPECT_TRUE(IsUnconnected(OnlyEvent<KvFailed>().status));
  Grant(2, 2, {20}, kNeverUs, 10);
  table_.OnHeartbeat(kFront.instance, 11);
  table_.OnHeartbeat(kBack.instance, 2 * kLeaseUs);
  events_.clear();
  table_.Tick(11 + kLeaseUs, events_);
  const absl::Status silent = OnlyEvent<KvFailed>().status;
  EXPECT_TRUE(absl::IsUnavailable(silent) && !IsUnconnected(silent)) << silent;
}

TEST_F(LeaseTableTest, ADeadlineCountsBeforeASilence) {
  Grant(2, 2, {20}, kLeaseUs / 2);
  Grant(3, 3, {21}, kLeaseUs);
  EXPECT_EQ(table_.NextDeadlineUs(), kLeaseUs / 2) << "the earliest";
  table_.Revoke(1, 1, events_);
  events_.clear();
  table_.Tick(2 * kLeaseUs, events_);
  ASSERT_EQ(events_.size(), 2u) << "each ends once";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(std::get<KvFailed>(events_[i]).slot, 2 + i);
    EXPECT_TRUE(absl::IsDeadlineExceeded(std::get<KvFailed>(events_[i]).status));
  }
}

TEST_F(LeaseTableTest, AWriterIsCompleteWithItsDataAndItsCommit) {
  EXPECT_FALSE(table_.WriterComplete(1, kFront.instance));
  Place(Header(kFront, 0, 4));
  EXPECT_FALSE(table_.WriterComplete(1, kFront.instance)) << "no commit";
  Committed(Commit(kFront, kFrontSum));
  EXPECT_TRUE(table_.WriterComplete(1, kFront.instance));
  EXPECT_FALSE(table_.WriterComplete(1, kBack.instance));
  EXPECT_FALSE(table_.WriterComplete(1, {"prefill-9", 203})) << "a stranger";
  table_.Revoke(1, 1, events_);
  EXPECT_TRUE(table_.WriterComplete(1, kBack.instance)) << "nobody waits any more";
}

TEST_F(LeaseTableTest, RevokesNothingBeyondItsSlots) {
  table_.Revoke(4, 1, events_);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(table_.active_grants(), 1);
}

// What the last grant of a slot has had is not the next one's.
TEST_F(LeaseTableTest, ASlotBeginsAnew) {
  PlaceAll();
  Committed(Commit(kFront, kFrontSum));
  Committed(Commit(kBack, kBackSum));
  table_.Revoke(1, 1, events_);
  events_.clear();
  table_.TakeReceipts();
  table_.Grant({1, 2, {20, 21, 22, 23}, {kFront}, kNeverUs}, 0);
  KvDataHeader header = Header(kFront, 0, 4);
  header.generation = 2;
  Place(header);
  KvCommit commit = Commit(kFront, kFrontSum);
  commit.generation = 2;
  EXPECT_EQ(Committed(commit), std::nullopt);
  const auto committed = OnlyEvent<KvCommitted>();
  EXPECT_EQ(committed.generation, 2u);
  EXPECT_EQ(committed.first_token, std::nullopt) << "who draws writes to another rank";
  EXPECT_EQ(committed.bytes, 4 * kLayout.BandBytes(kFront.layers));
}

// One writer's pages: some have come, and a run is about them and others.
TEST_F(LeaseTableTest, ARunThatOverlapsWhatHasComeIsRefused) {
  Place(Header(kFront, 2, 1));
  EXPECT_EQ(Refused(Header(kFront, 1, 2)), KvRefusal::kDuplicate);
  EXPECT_EQ(Refused(Header(kFront, 2, 2)), KvRefusal::kDuplicate);
  Place(Header(kFront, 0, 2));
  Place(Header(kFront, 3, 1));
}

TEST_F(LeaseTableTest, EachFailureNamesItsCause) {
  const auto failure = [this](uint32_t slot) {
    EXPECT_EQ(events_.size(), 1u);
    const auto failed = std::get<KvFailed>(events_.at(0));
    EXPECT_EQ(failed.slot, slot);
    events_.clear();
    return failed.status;
  };
  End(Begin(Header(kFront, 0, 4)), 0, absl::CancelledError("reset"));
  absl::Status status = failure(1);
  EXPECT_TRUE(absl::IsCancelled(status)) << "the transfer's own";
  EXPECT_EQ(InstanceOf(status), "prefill-0");
  Grant(2, 2, {20}, 5);
  table_.Tick(5, events_);
  status = failure(2);
  EXPECT_EQ(LegOf(status), "decode");
  EXPECT_EQ(InstanceOf(status), kSelf.id);
  Grant(3, 3, {21});
  KvCommit commit = Commit(kBack, 0);
  commit.slot = 3;
  commit.generation = 3;
  EXPECT_EQ(Committed(commit), KvRefusal::kBadRange) << "it has one page";
  status = failure(3);
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "prefill-1");
}

TEST_F(LeaseTableTest, IsNotAtRestWhileAGrantDrains) {
  EXPECT_FALSE(table_.AtRest());
  const KvDataHeader header = Header(kFront, 0, 4);
  const uint64_t receipt = Begin(header);
  table_.Revoke(1, 1, events_);
  EXPECT_FALSE(table_.AtRest());
  End(receipt, header.checksum);
  EXPECT_TRUE(table_.AtRest());
}

// A writer of two grants is remembered until both are revoked.
TEST_F(LeaseTableTest, AWriterIsRememberedAsLongAsAGrantIsOpen) {
  Grant(2, 2, {20});
  table_.OnHeartbeat(kFront.instance, 100);
  table_.OnHeartbeat(kBack.instance, 100);
  table_.OnHeartbeat(kBack.instance, 50);
  table_.Revoke(1, 1, events_);
  EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
  EXPECT_EQ(table_.NextDeadlineUs(), 100 + kLeaseUs);
  table_.Revoke(2, 2, events_);
  EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
  EXPECT_EQ(table_.NextDeadlineUs(), kNeverUs);
}

}  // namespace
}  // namespace baton
