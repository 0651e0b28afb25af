// What becomes of a commit, with its receipt and without.
#include <gtest/gtest.h>

#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/kv_outbox_fixture.h"

namespace baton::prefill {
namespace {

class KvReceiptsTest : public KvOutboxTest {
 protected:
  // All of attempt 9 has left: one message of data and the commit, as sends 1 and 2.
  void SendAll() {
    Send(1, 9, {4});
    Commit(2, 9);
    End(data_[0].message_id);
    End(commits_[0].message_id);
    ASSERT_EQ(sent_.size(), 1u);
    EXPECT_EQ(outbox_.NextDeadlineUs(), now_us_ + kReceiptUs);
  }
  void WaitForReceipt() {
    now_us_ += kReceiptUs;
    Tick();
  }
  // Asks until the last repetition has left.
  void AskInVain() {
    for (size_t asks = 1; asks <= 3; ++asks) {
      WaitForReceipt();
      ASSERT_EQ(commits_.size(), asks + 1);
      EXPECT_TRUE(commits_.back().again);
      EXPECT_EQ(outbox_.NextDeadlineUs(), kNeverUs) << "nothing is due until it has left";
      End(commits_.back().message_id);
    }
    EXPECT_EQ(sent_.size(), 1u);
  }
  const KvSent& Ended() {
    EXPECT_EQ(sent_.size(), 2u);
    EXPECT_EQ(sent_.back().send_id, 2u);
    EXPECT_TRUE(outbox_.AtRest());
    EXPECT_EQ(outbox_.NextDeadlineUs(), kNeverUs);
    return sent_.back();
  }
  static constexpr int64_t kReceiptUs = 1'000'000;
};

TEST_F(KvReceiptsTest, ACommitIsRepeatedAndAReceiptEndsIt) {
  SendAll();
  EXPECT_FALSE(commits_[0].again);
  now_us_ += kReceiptUs - 1;
  Tick();
  EXPECT_EQ(commits_.size(), 1u) << "too soon";
  now_us_ += 1;
  Tick();
  ASSERT_EQ(commits_.size(), 2u);
  EXPECT_EQ(commits_[1].generation, 9u);
  Receive(9, KvReceiptKind::kComplete);
  EXPECT_EQ(sent_.size(), 1u) << "the repetition is still under way";
  End(commits_[1].message_id);
  EXPECT_TRUE(Ended().status.ok());
}

TEST_F(KvReceiptsTest, WhatNobodyWaitsForIsDone) {
  SendAll();
  Receive(9, KvReceiptKind::kOver);
  EXPECT_TRUE(Ended().status.ok());
}

TEST_F(KvReceiptsTest, ACommitThatIsRefusedFails) {
  SendAll();
  Receive(9, KvReceiptKind::kRefused);
  EXPECT_EQ(Ended().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(InstanceOf(sent_.back().status), "decode-0");
}

TEST_F(KvReceiptsTest, WhatIsMissingAfterTheLastRepetitionIsLost) {
  SendAll();
  Receive(9, KvReceiptKind::kMissing, 1);
  for (size_t asks = 1; asks <= 3; ++asks) {
    EXPECT_EQ(sent_.size(), 1u) << "it may be late";
    WaitForReceipt();
    End(commits_.back().message_id);
    Receive(9, KvReceiptKind::kMissing, 1);
  }
  EXPECT_EQ(Ended().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LegOf(sent_.back().status), "decode");
  EXPECT_NE(sent_.back().status.message().find("1 parts"), std::string::npos);
}

TEST_F(KvReceiptsTest, WithoutAnyReceiptItIsNotAcknowledged) {
  SendAll();
  AskInVain();
  WaitForReceipt();
  EXPECT_EQ(Ended().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(sent_.back().status.message().find("not acknowledged"), std::string::npos);
  EXPECT_EQ(commits_.size(), 4u);
}

// On a slow network the data may leave long after the commit.
TEST_F(KvReceiptsTest, NothingIsAskedWhileDataIsUnderWay) {
  Send(1, 9, {4});
  Commit(2, 9);
  End(commits_[0].message_id);
  for (int i = 0; i < 10; ++i) WaitForReceipt();
  EXPECT_EQ(commits_.size(), 1u);
  End(data_[0].message_id);
  WaitForReceipt();
  EXPECT_EQ(commits_.size(), 2u);
}

TEST_F(KvReceiptsTest, DataOfOthersDelaysNobodysReceipt) {
  SendAll();
  Send(3, 8, {5});
  WaitForReceipt();
  EXPECT_EQ(commits_.size(), 2u);
}

TEST_F(KvReceiptsTest, AReceiptOfAnotherGrantIsNotTaken) {
  SendAll();
  Receive(8, KvReceiptKind::kComplete);
  outbox_.OnReceipt({{"prefill-0", 1}, 3, 9, kDecode.incarnation, KvReceiptKind::kComplete, 0},
                    now_us_, actions_);
  outbox_.OnReceipt({{"prefill-0", 1}, 2, 9, kOther.incarnation, KvReceiptKind::kComplete, 0},
                    now_us_, actions_);
  Sort();
  EXPECT_EQ(sent_.size(), 1u);
}

TEST_F(KvReceiptsTest, AReceiptBeforeTheCommitsOwnEndCounts) {
  Send(1, 9, {4});
  Commit(2, 9);
  End(data_[0].message_id);
  Receive(9, KvReceiptKind::kComplete);
  EXPECT_EQ(sent_.size(), 1u);
  End(commits_[0].message_id);
  EXPECT_TRUE(Ended().status.ok());
}

TEST_F(KvReceiptsTest, WhoIsCancelledWaitsForNoReceipt) {
  SendAll();
  outbox_.Cancel(9, now_us_, actions_);
  Sort();
  EXPECT_EQ(Ended().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(KvReceiptsTest, AFailedMessageEndsTheCommitThatWaits) {
  Send(1, 9, {4});
  Commit(2, 9);
  End(commits_[0].message_id);
  End(data_[0].message_id, absl::UnavailableError("reset"));
  EXPECT_EQ(sent_.size(), 2u);
  for (const KvSent& sent : sent_) EXPECT_EQ(sent.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvReceiptsTest, TheEndOfAnEpochLeavesNobodyWaiting) {
  SendAll();
  outbox_.CancelAll(now_us_, actions_);
  Sort();
  EXPECT_EQ(Ended().status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace baton::prefill
