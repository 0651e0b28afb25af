#include "services/prefill/core/kv_outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "services/prefill/core/kv_outbox_fixture.h"

namespace baton::prefill {
namespace {

TEST_F(KvOutboxTest, AMessageIsOneRunOfNeighbours) {
  Send(1, 9, {4, 5, 6, 2}, 10);
  ASSERT_EQ(data_.size(), 3u);  // {4, 5} by the limit of 250 bytes, {6}, {2}.
  EXPECT_EQ(data_[0].local_page, 4);
  EXPECT_EQ(data_[0].first_page, 10);
  EXPECT_EQ(data_[0].page_count, 2);
  EXPECT_EQ(data_[0].bytes, 2 * kPage);
  EXPECT_EQ(data_[1].local_page, 6);
  EXPECT_EQ(data_[1].first_page, 12);
  EXPECT_EQ(data_[2].local_page, 2);
  EXPECT_EQ(data_[2].first_page, 13);
  for (const SendKvMessage& message : data_) EXPECT_EQ(message.part, 0);
  EXPECT_TRUE(sent_.empty());
  for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].status.ok());
  EXPECT_EQ(sent_[0].bytes, 400);
  EXPECT_EQ(sent_[0].transfer_us, 10);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxTest, TheRestWaitsForRoomAndCommitsForTheirPages) {
  Send(1, 9, {1, 3, 5, 7, 9, 11});  // No neighbours: six messages.
  Commit(2, 9);
  EXPECT_EQ(data_.size(), 4u) << "the window";
  EXPECT_TRUE(commits_.empty());
  End(data_[0].message_id);
  EXPECT_EQ(data_.size(), 5u);
  EXPECT_TRUE(commits_.empty());
  End(data_[1].message_id);
  EXPECT_EQ(data_.size(), 6u);
  EXPECT_EQ(commits_.size(), 1u) << "it may overtake the pages that are under way";
  End(commits_[0].message_id);
  EXPECT_TRUE(sent_.empty()) << "sent is not arrived";
  Receive(9, KvReceiptKind::kComplete);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].send_id, 2u);
}

TEST_F(KvOutboxTest, OneDecodeDoesNotWaitForAnother) {
  Send(1, 9, {1, 3, 5, 7, 9, 11});
  Send(2, 8, {20, 22}, 0, kOther);
  EXPECT_EQ(data_.size(), 6u);
}

TEST_F(KvOutboxTest, AFailureEndsTheAttemptAndNobodyElse) {
  Send(1, 9, {1, 3, 5, 7, 9, 11});
  Commit(2, 9);
  Send(3, 8, {20});
  const absl::Status broken = absl::UnavailableError("reset");
  End(data_[0].message_id, broken);
  ASSERT_EQ(sent_.size(), 1u) << "the commit: nothing of it is under way";
  EXPECT_EQ(sent_[0].send_id, 2u);
  EXPECT_EQ(sent_[0].status, broken);
  EXPECT_EQ(data_.back().attempt_id, 8u) << "its room is for the next";
  Send(4, 9, {13});
  EXPECT_EQ(sent_.back().send_id, 4u);
  EXPECT_EQ(sent_.back().status, broken);
  EXPECT_EQ(sent_.back().bytes, 0);
  EXPECT_EQ(sent_.back().transfer_us, 0);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(sent_.size(), 2u) << "pages are read until their last message has ended";
    End(data_[i].message_id);
  }
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].send_id, 1u);
  EXPECT_EQ(sent_[2].status, broken);
  End(data_.back().message_id);
  EXPECT_TRUE(sent_.back().status.ok());
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxTest, CancellingEndsWhatIsNotUnderWay) {
  Send(1, 9, {1, 3, 5, 7, 9, 11});
  Send(2, 9, {13});
  outbox_.Cancel(9, 5, actions_);
  Sort();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].send_id, 2u);
  EXPECT_EQ(sent_[0].status.code(), absl::StatusCode::kCancelled);
  for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
  EXPECT_EQ(data_.size(), 4u);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].status.code(), absl::StatusCode::kCancelled);
  outbox_.Forget(9);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxTest, WhoWaitedBehindACancelledOneGoesOn) {
  Send(1, 9, {4, 5, 7, 8});
  Send(2, 9, {10, 11});  // 200 bytes; 100 are left of the window.
  Send(3, 8, {20});
  ASSERT_EQ(data_.size(), 2u);
  outbox_.Cancel(9, 5, actions_);
  Sort();
  ASSERT_EQ(data_.size(), 3u);
  EXPECT_EQ(data_[2].attempt_id, 8u);
}

TEST_F(KvOutboxTest, CancellingEndsCommitsThatWaitForTheirReceiptsAndNobodyElses) {
  for (const uint64_t attempt : {8, 9, 10}) Commit(attempt - 7, attempt);
  for (const auto& commit : std::vector(commits_)) End(commit.message_id);
  ASSERT_TRUE(sent_.empty());
  outbox_.Cancel(9, 5, actions_);
  Sort();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].send_id, 2u);
  Receive(10, KvReceiptKind::kComplete);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(sent_[1].status.ok());
  outbox_.Cancel(8, 5, actions_);
  Sort();
  EXPECT_EQ(sent_.size(), 3u);
}

TEST_F(KvOutboxTest, TheEndOfAnEpochLeavesOnlyWhatIsUnderWay) {
  for (uint64_t i = 1; i <= 5; ++i) Send(i, 10 + i, {static_cast<int>(2 * i), 90});
  outbox_.CancelAll(5, actions_);
  Sort();
  EXPECT_EQ(data_.size(), 4u) << "and nothing new";
  for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
  EXPECT_EQ(sent_.size(), 5u);
  EXPECT_TRUE(outbox_.AtRest());
}

// By its name; it is another one, of the next epoch.
TEST_F(KvOutboxTest, WhatIsForgottenMayBeginAnew) {
  for (const bool whole_epoch : {false, true}) {
    data_.clear();
    sent_.clear();
    commits_.clear();
    Send(1, 9, {1, 3, 5, 7, 9, 11});
    if (whole_epoch) {
      outbox_.CancelAll(5, actions_);
    } else {
      outbox_.Cancel(9, 5, actions_);
      outbox_.Forget(9);
    }
    Sort();
    for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
    ASSERT_EQ(sent_.size(), 1u);
    data_.clear();
    Send(2, 9, {4});
    Commit(3, 9);
    ASSERT_EQ(data_.size(), 1u) << whole_epoch;
    ASSERT_EQ(commits_.size(), 1u);
    EXPECT_EQ(commits_[0].checksum_sum, 1u) << "of its own message alone";
    End(data_[0].message_id);
    End(commits_[0].message_id);
    Receive(9, KvReceiptKind::kComplete);
    EXPECT_TRUE(outbox_.AtRest());
  }
}

TEST_F(KvOutboxTest, TheWindowMayBeFull) {
  Send(1, 9, {4, 5, 7, 8, 10});
  EXPECT_EQ(data_.size(), 3u) << "500 bytes";
}

TEST_F(KvOutboxTest, ACommitWaitsForTheExportsOfItsRequest) {
  hold_exports_ = true;
  Send(1, 9, {4, 6});
  Commit(2, 9);
  ASSERT_EQ(exports_.size(), 2u);
  EXPECT_TRUE(data_.empty());
  // The second one is there first: it leaves, the commit does not.
  EndExport(exports_[1], 40);
  ASSERT_EQ(data_.size(), 1u);
  EXPECT_EQ(data_[0].local_page, 6);
  EXPECT_EQ(data_[0].checksum, 40u);
  End(data_[0].message_id);
  EXPECT_TRUE(commits_.empty());
  EndExport(exports_[0], 2);
  ASSERT_EQ(commits_.size(), 1u);
  EXPECT_EQ(commits_[0].checksum_sum, 42u);
  // Repeated, it says the same.
  End(data_[1].message_id);
  End(commits_[0].message_id);
  now_us_ += 1'000'000;
  Tick();
  ASSERT_EQ(commits_.size(), 2u);
  EXPECT_EQ(commits_[1].checksum_sum, 42u);
}

TEST_F(KvOutboxTest, ACommitWaitsForNobodyElsesExports) {
  hold_exports_ = true;
  Send(1, 9, {4});
  Send(2, 8, {6});
  Commit(3, 9);
  EndExport(exports_[0]);
  EXPECT_EQ(commits_.size(), 1u);
}

TEST_F(KvOutboxTest, ATransferTakesFromItsBeginToItsEnd) {
  outbox_.Add(SendKv{1, 1, 9, {.decode = kDecode}, 0, {4}}, 4, actions_);
  Sort();
  End(data_[0].message_id);
  EXPECT_EQ(sent_.at(0).transfer_us, 6);
}

TEST_F(KvOutboxTest, AFailedExportEndsItsRequestAndNoOther) {
  hold_exports_ = true;
  Send(1, 9, {4, 6});
  Send(2, 10, {8});
  Commit(3, 9);
  EndExport(exports_[0], absl::ResourceExhaustedError("no staging"));
  ASSERT_EQ(sent_.size(), 1u) << "the commit; the other message is still being exported";
  EXPECT_EQ(sent_[0].send_id, 3u);
  EndExport(exports_[2]);
  EndExport(exports_[1]);
  ASSERT_EQ(data_.size(), 2u);
  for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
  EXPECT_TRUE(commits_.empty());
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[1].send_id, 2u);
  EXPECT_TRUE(sent_[1].status.ok());
  EXPECT_EQ(sent_[2].status.message(), "no staging");
  EXPECT_TRUE(outbox_.AtRest());
}

class LargePagesTest : public KvOutboxTest {
 protected:
  static KvOutboxOptions Options() {
    KvOutboxOptions options = SmallOptions();
    options.page_bytes = 1000;
    return options;
  }
  LargePagesTest() : KvOutboxTest(Options()) {}
};

TEST_F(LargePagesTest, LargePagesGoInParts) {
  Send(1, 9, {4, 5});
  for (size_t i = 0; i < data_.size(); ++i) End(data_[i].message_id);
  ASSERT_EQ(data_.size(), 6u);
  for (size_t i = 0; i < data_.size(); ++i) {
    EXPECT_EQ(data_[i].first_page, static_cast<int>(i / 3));
    EXPECT_EQ(data_[i].local_page, 4 + static_cast<int>(i / 3));
    EXPECT_EQ(data_[i].page_count, 1);
    EXPECT_EQ(data_[i].part, static_cast<int>(i % 3));
    EXPECT_EQ(data_[i].offset_bytes, i % 3 * 400);
    EXPECT_EQ(data_[i].bytes, i % 3 == 2 ? 200u : 400u);
  }
  EXPECT_EQ(sent_.size(), 1u);
}

KvReceipt ReceiptOf(const std::pair<uint64_t, uint64_t>& commit, Random& random) {
  return {{"prefill-0", 1},
          0,
          commit.first,
          commit.second,
          static_cast<KvReceiptKind>(random.Between(1, 4)),
          3};
}

KvOutboxOptions RandomOptions(Random& random) {
  KvOutboxOptions options = SmallOptions();
  options.receipt_us = 20;
  options.kv_heads = 4;
  options.page_bytes = 4 * static_cast<size_t>(random.Between(15, 220));
  options.gathered_bytes = 600;
  return options;
}

// Things happen to it in any order.
class RandomOutbox {
 public:
  explicit RandomOutbox(uint64_t seed)
      : random_(seed), options_(RandomOptions(random_)), outbox_(options_) {
    const std::vector<int> ranks = {1, 2, 4};
    for (int i = 1; i < ranks[seed % ranks.size()]; ++i) {
      ticket_.followers.push_back({"follower-" + std::to_string(i), 20 + static_cast<uint64_t>(i)});
    }
  }

  void Happen(int step) {
    const uint64_t attempt = random_.Below(5);
    if (step < 100 && random_.Chance(0.4)) {
      std::vector<int> pages(1 + random_.Below(5));
      for (int& page : pages) page = static_cast<int>(random_.Below(4));
      outbox_.Add(SendKv{1, ++sends_, attempt, ticket_, 0, pages}, step, actions_);
    } else if (step < 100 && random_.Chance(0.2)) {
      Ticket own = ticket_;
      own.generation = ++sends_;
      outbox_.Add(SendCommit{1, sends_, attempt, own, {}}, step, actions_);
    } else if (!committed_.empty() && random_.Chance(0.2)) {
      outbox_.OnReceipt(ReceiptOf(*committed_.begin(), random_), step, actions_);
      committed_.erase(committed_.begin());
    } else if (random_.Chance(0.05)) {
      outbox_.Tick(step, actions_);
    } else if (random_.Chance(0.05)) {
      outbox_.Cancel(attempt, step, actions_);
    } else if (random_.Chance(0.01)) {
      outbox_.CancelAll(step, actions_);
    } else if (!under_way_.empty()) {
      GoOn(random_.Below(under_way_.size()), 0.05, step);
    }
    Take();
  }
  void Finish() {
    for (int64_t now_us = 500; !outbox_.AtRest() && now_us < 1000; ++now_us) {
      if (under_way_.empty()) {
        outbox_.Tick(now_us, actions_);
      } else {
        GoOn(under_way_.size() - 1, 0, now_us);
      }
      Take();
    }
    EXPECT_TRUE(outbox_.AtRest());
    EXPECT_EQ(ended_.size(), sends_);
    EXPECT_EQ(std::set<uint64_t>(ended_.begin(), ended_.end()).size(), sends_);
  }

 private:
  struct Message {
    uint64_t id;
    size_t bytes;
    InstanceRef decode;
  };

  void Take() {
    ASSERT_TRUE(outbox_.CheckInvariants().ok()) << outbox_.CheckInvariants();
    for (const KvOutboxAction& action : std::exchange(actions_, {})) {
      if (const auto* start = std::get_if<ExportKv>(&action)) {
        const SendKvMessage& message = start->message;
        under_way_.push_back({message.message_id, message.bytes, message.decode});
        ASSERT_LE(message.bytes, options_.part_bytes);
      } else if (const auto* data = std::get_if<SendKvMessage>(&action)) {
        exported_.insert(data->message_id);
      } else if (const auto* commit = std::get_if<SendCommitMessage>(&action)) {
        under_way_.push_back({commit->message_id, 0, commit->decode});
        exported_.insert(commit->message_id);
        committed_.emplace(commit->generation, commit->decode.incarnation);
      } else {
        ended_.insert(std::get<KvSent>(action).send_id);
      }
    }
    std::map<InstanceRef, size_t> bytes;
    size_t gathered = 0;
    for (const Message& message : under_way_) {
      bytes[message.decode] += message.bytes;
      if (!ticket_.followers.empty()) gathered += message.bytes;
    }
    for (const auto& [decode, to_it] : bytes) ASSERT_LE(to_it, options_.window_bytes) << decode.id;
    ASSERT_LE(gathered, options_.gathered_bytes + 3 * options_.part_bytes);
  }
  void GoOn(size_t pick, double fails, int64_t now_us) {
    const uint64_t id = under_way_[pick].id;
    const absl::Status end =
        random_.Chance(fails) ? absl::UnavailableError("lost") : absl::OkStatus();
    const bool sent = exported_.contains(id);
    if (sent || !end.ok()) under_way_.erase(under_way_.begin() + static_cast<int64_t>(pick));
    if (sent) return outbox_.MessageEnded(id, end, now_us, actions_);
    outbox_.Exported(id, end.ok() ? absl::StatusOr<uint64_t>(id) : end, now_us, actions_);
  }

  Random random_;
  const KvOutboxOptions options_;
  Ticket ticket_{.decode = kDecode};
  KvOutbox outbox_;
  std::vector<KvOutboxAction> actions_;
  std::vector<Message> under_way_;
  std::set<uint64_t> exported_;                        // And what needs no export.
  std::set<std::pair<uint64_t, uint64_t>> committed_;  // Generation, decode incarnation.
  std::multiset<uint64_t> ended_;
  uint64_t sends_ = 0;
};

// Whatever happens in whatever order, and however many ranks decode has: every send ends once,
// within the window, and nothing is left.
TEST(KvOutboxRandomTest, EverySendEndsOnce) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomOutbox outbox(seed);
    for (int step = 0; step < 200; ++step) outbox.Happen(step);
    outbox.Finish();
  }
}

}  // namespace
}  // namespace baton::prefill
