// Sends to decode services of several ranks: each gets its heads, and all of them end a send.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/kv_outbox_fixture.h"

namespace baton::prefill {
namespace {

const InstanceRef kFollower{"decode-0-1", 15};
const InstanceRef kThird{"decode-0-2", 16};
const InstanceRef kFourth{"decode-0-3", 17};
constexpr int64_t kReceiptUs = 1'000'000;

KvOutboxOptions OptionsOf(int kv_heads, TensorRank rank) {
  KvOutboxOptions options = SmallOptions();
  options.kv_heads = kv_heads;
  options.tensor_rank = rank;
  return options;
}

// By default one process with two heads of a hundred bytes a page, to two ranks with one each.
class KvOutboxRanksTest : public KvOutboxTest {
 protected:
  explicit KvOutboxRanksTest(const KvOutboxOptions& options = OptionsOf(2, {0, 1}))
      : KvOutboxTest(options) {}

  static Ticket RanksTicket(uint64_t attempt, std::vector<InstanceRef> followers = {kFollower}) {
    Ticket ticket = TicketOf(attempt);
    ticket.followers = std::move(followers);
    return ticket;
  }
  void SendTo(const Ticket& ticket, uint64_t send_id, uint64_t attempt, std::vector<int> pages) {
    outbox_.Add(SendKv{1, send_id, attempt, ticket, 0, std::move(pages)}, 0, actions_);
    Sort();
  }
  void CommitTo(const Ticket& ticket, uint64_t send_id, uint64_t attempt) {
    outbox_.Add(SendCommit{1, send_id, attempt, ticket, SampledToken{.token = 7}}, 0, actions_);
    Sort();
  }
  void ReceiveFrom(const InstanceRef& decode, KvReceiptKind kind, uint32_t missing = 0) {
    outbox_.OnReceipt({{"prefill-0", 1}, 2, 9, decode.incarnation, kind, missing}, now_us_,
                      actions_);
    Sort();
  }
  void EndData() {
    for (const SendKvMessage& message : std::vector(data_)) End(message.message_id);
    data_.clear();
  }
  void EndCommits() {
    for (const SendCommitMessage& commit : std::vector(commits_)) End(commit.message_id);
    commits_.clear();
  }
  // Attempt 9: one page as send 1 and the commit as send 2, all of which has left.
  void SendAll() {
    SendTo(RanksTicket(9), 1, 9, {4});
    CommitTo(RanksTicket(9), 2, 9);
    EndData();
    ASSERT_EQ(commits_.size(), 2u);
    EndCommits();
    ASSERT_EQ(sent_.size(), 1u);
  }
};

TEST_F(KvOutboxRanksTest, EachRankGetsItsHeadsAndTheLastMessageEndsTheSend) {
  SendTo(RanksTicket(9), 1, 9, {4, 5, 6, 2});
  ASSERT_EQ(data_.size(), 4u);  // {4, 5, 6} and {2}, half of each page to each rank.
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(data_[i].decode, i < 2 ? kDecode : kFollower);
    EXPECT_EQ(data_[i].slot, RanksTicket(9).slot);
    EXPECT_EQ(data_[i].generation, 9u);
    EXPECT_EQ(data_[i].box.heads, i < 2 ? (IndexRange{0, 1}) : (IndexRange{1, 2}));
    EXPECT_EQ(data_[i].first_page, i % 2 == 0 ? 0 : 3);
    EXPECT_EQ(data_[i].local_page, i % 2 == 0 ? 4 : 2);
    EXPECT_EQ(data_[i].page_count, i % 2 == 0 ? 3 : 1);
    EXPECT_EQ(data_[i].bytes, static_cast<size_t>(data_[i].page_count) * kPage / 2);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(sent_.empty()) << i;
    End(data_[i].message_id);
  }
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].status.ok());
  EXPECT_EQ(sent_[0].bytes, 400);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxRanksTest, PartsAreCountedByWhatTheRankGets) {
  SendTo(RanksTicket(9, {kFollower, kThird, kFourth}), 1, 9, {4});
  ASSERT_EQ(data_.size(), 4u) << "two have copies of each head";
  EXPECT_EQ(data_[1].box.heads, data_[0].box.heads);
  EXPECT_NE(data_[2].box.heads, data_[0].box.heads);
  for (const SendKvMessage& message : data_) EXPECT_EQ(message.part, 0);
}

class LargeRanksTest : public KvOutboxRanksTest {
 protected:
  static KvOutboxOptions Options() {
    KvOutboxOptions options = OptionsOf(2, {0, 1});
    options.page_bytes = 1000;  // 500 of each head: parts of 400 and 100.
    options.window_bytes = 5000;
    options.window_messages = 20;
    return options;
  }
  LargeRanksTest() : KvOutboxRanksTest(Options()) {}
};

TEST_F(LargeRanksTest, APageOfOneRankGoesInItsOwnParts) {
  SendTo(RanksTicket(9), 1, 9, {4, 5});
  ASSERT_EQ(data_.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(data_[i].first_page, static_cast<int>(i / 2 % 2));
    EXPECT_EQ(data_[i].part, static_cast<int>(i % 2));
    EXPECT_EQ(data_[i].offset_bytes, i % 2 * 400);
    EXPECT_EQ(data_[i].bytes, i % 2 == 0 ? 400u : 100u);
  }
}

// Each rank's commit has the sum of what went to it, and leaves when that has been exported.
TEST_F(KvOutboxRanksTest, CommitsAreEachRanksOwn) {
  hold_exports_ = true;
  SendTo(RanksTicket(9), 1, 9, {4, 6});
  CommitTo(RanksTicket(9), 2, 9);
  ASSERT_EQ(exports_.size(), 4u);
  EndExport(exports_[2], 300);
  EndExport(exports_[3], 4000);
  ASSERT_EQ(commits_.size(), 1u) << "what goes to rank 0 is still being exported";
  EXPECT_EQ(commits_[0].decode, kFollower);
  EXPECT_EQ(commits_[0].checksum_sum, 4300u);
  EXPECT_TRUE(commits_[0].first_token.has_value());
  EndExport(exports_[0], 1);
  EndExport(exports_[1], 20);
  ASSERT_EQ(commits_.size(), 2u);
  EXPECT_EQ(commits_[1].decode, kDecode);
  EXPECT_EQ(commits_[1].checksum_sum, 21u);
  EXPECT_TRUE(commits_[1].first_token.has_value());
  EndData();
  EndCommits();
  ReceiveFrom(kFollower, KvReceiptKind::kComplete);
  EXPECT_EQ(sent_.size(), 1u) << "rank 0 has not said so";
  ReceiveFrom(kDecode, KvReceiptKind::kComplete);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].send_id, 2u);
  EXPECT_TRUE(sent_[1].status.ok());
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxRanksTest, ALateRankDelaysNobodyElse) {
  SendTo(RanksTicket(9), 1, 9, {1, 3, 5, 7, 9, 11});  // Six messages to each, four at a time.
  CommitTo(RanksTicket(9), 2, 9);
  ASSERT_EQ(data_.size(), 8u);
  for (size_t i = 0; i < data_.size(); ++i) {
    if (data_[i].decode == kFollower) End(data_[i].message_id);
  }
  ASSERT_EQ(commits_.size(), 1u);
  EXPECT_EQ(commits_[0].decode, kFollower);
  SendTo(RanksTicket(8), 3, 8, {20});
  EXPECT_EQ(data_.back().decode, kFollower) << "the next request goes on where there is room";
  EXPECT_TRUE(sent_.empty());
}

TEST_F(KvOutboxRanksTest, ARankThatRefusesEndsTheAttemptByItsName) {
  SendAll();
  ReceiveFrom(kDecode, KvReceiptKind::kComplete);
  ReceiveFrom(kFollower, KvReceiptKind::kRefused);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(LegOf(sent_[1].status), "decode");
  EXPECT_EQ(InstanceOf(sent_[1].status), kFollower.id);
  EXPECT_TRUE(outbox_.AtRest());
  EXPECT_EQ(outbox_.NextDeadlineUs(), kNeverUs);
}

TEST_F(KvOutboxRanksTest, ARankThatIsNotConnectedEndsWhatWaitsForTheOthers) {
  SendTo(RanksTicket(9), 1, 9, {1, 3, 5, 7, 9, 11});
  CommitTo(RanksTicket(9), 2, 9);
  const absl::Status gone =
      WithLeg(absl::UnavailableError("it is not connected"), "decode", kFollower.id);
  const std::vector<SendKvMessage> under_way = data_;
  ASSERT_EQ(under_way[4].decode, kFollower);
  End(under_way[4].message_id, gone);
  ASSERT_EQ(sent_.size(), 1u) << "the commit";
  EXPECT_EQ(sent_[0].send_id, 2u);
  EXPECT_EQ(sent_[0].status, gone);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(sent_.size(), 1u) << "pages are read until the last message has ended";
    if (i != 4) End(under_way[i].message_id);
  }
  EXPECT_EQ(data_.size(), 8u) << "nothing more leaves";
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].status, gone);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxRanksTest, CancellingEndsAllShares) {
  SendTo(RanksTicket(9), 1, 9, {1, 3, 5, 7, 9, 11});
  SendTo(RanksTicket(9), 2, 9, {13});
  CommitTo(RanksTicket(9), 3, 9);
  outbox_.Cancel(9, 5, actions_);
  Sort();
  EXPECT_EQ(sent_.size(), 2u);
  EndData();
  ASSERT_EQ(sent_.size(), 3u);
  for (const KvSent& sent : sent_) EXPECT_EQ(sent.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxRanksTest, OnlyTheRankWhoseReceiptIsLostIsAskedAgain) {
  SendAll();
  ReceiveFrom(kDecode, KvReceiptKind::kComplete);
  ReceiveFrom(kDecode, KvReceiptKind::kRefused);
  EXPECT_EQ(sent_.size(), 1u) << "its first word counts";
  for (int asks = 1; asks <= 3; ++asks) {
    now_us_ += kReceiptUs;
    Tick();
    ASSERT_EQ(commits_.size(), 1u) << asks;
    EXPECT_EQ(commits_[0].decode, kFollower);
    EXPECT_TRUE(commits_[0].again);
    EndCommits();
  }
  ReceiveFrom(kDecode, KvReceiptKind::kMissing, 2);
  EXPECT_EQ(sent_.size(), 1u) << "an old word of one that has all";
  now_us_ += kReceiptUs;
  Tick();
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(sent_[1].status)) << sent_[1].status;
  EXPECT_EQ(InstanceOf(sent_[1].status), kFollower.id);
  EXPECT_TRUE(outbox_.AtRest());
}

// Found by the simulation: it was asked for again at once, for as long as the other was under way.
TEST_F(KvOutboxRanksTest, NobodyAsksForWhatHasFailedWhileAnotherRankIsBusy) {
  SendTo(RanksTicket(9), 1, 9, {4});
  CommitTo(RanksTicket(9), 2, 9);
  EndData();
  ASSERT_EQ(commits_.size(), 2u);
  End(commits_[0].message_id);  // The other's stays under way.
  EXPECT_NE(outbox_.NextDeadlineUs(), kNeverUs);
  ReceiveFrom(kDecode, KvReceiptKind::kRefused);
  EXPECT_EQ(outbox_.NextDeadlineUs(), kNeverUs);
  now_us_ += 2 * kReceiptUs;
  Tick();
  EXPECT_EQ(commits_.size(), 2u);
  End(commits_[1].message_id);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(InstanceOf(sent_[1].status), kDecode.id);
  EXPECT_TRUE(outbox_.AtRest());
}

TEST_F(KvOutboxRanksTest, AReceiptIsAskedForWhileOthersAreBusy) {
  SendTo(RanksTicket(9), 1, 9, {4});
  CommitTo(RanksTicket(9), 2, 9);
  EndCommits();
  End(data_[1].message_id);  // The follower's; rank 0's is slow.
  now_us_ += kReceiptUs;
  Tick();
  ASSERT_EQ(commits_.size(), 1u);
  EXPECT_EQ(commits_[0].decode, kFollower);
}

class GatheredTest : public KvOutboxRanksTest {
 protected:
  static KvOutboxOptions Options() {
    KvOutboxOptions options = OptionsOf(2, {0, 1});
    options.gathered_bytes = 150;  // Three messages of half a page.
    return options;
  }
  GatheredTest() : KvOutboxRanksTest(Options()) {}
};

// What is gathered takes memory, so its bound is over all destinations; yet each may have one.
TEST_F(GatheredTest, GatheredBytesAreBoundedOverAllRanks) {
  SendTo(RanksTicket(9), 1, 9, {1, 3, 5, 7});
  ASSERT_EQ(data_.size(), 4u);
  EXPECT_EQ(data_[2].decode, kDecode);
  EXPECT_EQ(data_[3].decode, kFollower) << "one beside the bound";
  // A process of its own has room of its own: nothing is gathered for it.
  Ticket whole = TicketOf(8);
  whole.decode = kOther;
  SendTo(whole, 2, 8, {20, 22});
  ASSERT_EQ(data_.size(), 6u);
  // A waiting message goes out when there is room, whichever destination freed it.
  End(data_[0].message_id);
  EXPECT_EQ(data_.size(), 6u) << "back within the bound";
  End(data_[1].message_id);
  ASSERT_EQ(data_.size(), 7u);
  EXPECT_EQ(data_[6].decode, kDecode);
  End(data_[2].message_id);
  ASSERT_EQ(data_.size(), 8u);
  EXPECT_EQ(data_[7].decode, kFollower);
  for (size_t i = 3; i < data_.size(); ++i) End(data_[i].message_id);
  EXPECT_EQ(data_.size(), 10u);
  EXPECT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(outbox_.AtRest());
}

// Rank 2 of 4 that share two heads has a copy of the second.
class CopyTest : public KvOutboxRanksTest {
 protected:
  CopyTest() : KvOutboxRanksTest(OptionsOf(2, {2, 4})) {}
};

TEST_F(CopyTest, SendsToThoseRanksThatItHasARouteTo) {
  SendTo(RanksTicket(9), 1, 9, {4});
  ASSERT_EQ(data_.size(), 1u);
  EXPECT_EQ(data_[0].decode, kFollower);
  EXPECT_EQ(data_[0].box.heads, (IndexRange{1, 2}));
  EXPECT_EQ(data_[0].bytes, kPage);
  EndData();
  SendTo(RanksTicket(8, {kFollower, kThird, kFourth}), 2, 8, {4});
  ASSERT_EQ(data_.size(), 1u);
  EXPECT_EQ(data_[0].decode, kThird);
  EndData();
  EXPECT_EQ(sent_.size(), 2u);
}

class IdleCopyTest : public KvOutboxRanksTest {
 protected:
  IdleCopyTest() : KvOutboxRanksTest(OptionsOf(2, {1, 4})) {}
};
using IdleCopyDeathTest = IdleCopyTest;

TEST_F(IdleCopyDeathTest, OneWithoutARouteSendsNothing) {
  EXPECT_DEATH(SendTo(RanksTicket(9), 1, 9, {4}), "rank 1 of 4 writes nothing to decode-0");
}

// ---- Decode services of several stages ----

// Layers [2, 6) of fifty bytes a layer and page.
class KvOutboxStagesTest : public KvOutboxRanksTest {
 protected:
  static KvOutboxOptions Options() {
    KvOutboxOptions options = SmallOptions();
    options.kv_heads = 2;
    options.layers = {2, 6};
    options.page_bytes = 200;
    return options;
  }
  KvOutboxStagesTest() : KvOutboxRanksTest(Options()) {}
  static Ticket StagesTicket() {
    Ticket ticket = RanksTicket(9, {kFollower, kThird});
    ticket.stages = {{0, 2}, {2, 5}, {5, 6}};
    return ticket;
  }
};

TEST_F(KvOutboxStagesTest, EachStageGetsTheLayersThatBothHave) {
  SendTo(StagesTicket(), 1, 9, {4});
  ASSERT_EQ(data_.size(), 2u) << "the first has none of them";
  EXPECT_EQ(data_[0].decode, kFollower);
  EXPECT_EQ(data_[0].box, (KvBox{{2, 5}, {0, 2}}));
  EXPECT_EQ(data_[0].bytes, 150u);
  EXPECT_EQ(data_[1].decode, kThird);
  EXPECT_EQ(data_[1].box, (KvBox{{5, 6}, {0, 2}}));
  EXPECT_EQ(data_[1].bytes, 50u);
}

TEST_F(KvOutboxStagesTest, TheFirstTokenGoesToTheLastStage) {
  CommitTo(StagesTicket(), 1, 9);
  ASSERT_EQ(commits_.size(), 2u);
  EXPECT_EQ(commits_[0].layers, (LayerRange{2, 5}));
  EXPECT_FALSE(commits_[0].first_token.has_value());
  EXPECT_EQ(commits_[1].layers, (LayerRange{5, 6}));
  EXPECT_TRUE(commits_[1].first_token.has_value());
  EndCommits();
  ReceiveFrom(kFollower, KvReceiptKind::kComplete);
  EXPECT_TRUE(sent_.empty());
  ReceiveFrom(kThird, KvReceiptKind::kComplete);
  EXPECT_EQ(sent_.size(), 1u);
}

}  // namespace
}  // namespace baton::prefill
