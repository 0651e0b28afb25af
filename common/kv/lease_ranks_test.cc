// Grants whose writers are ranks, on decode services of one rank and of more.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "common/kv/lease_table_fixture.h"

namespace baton {
namespace {

// Two ranks of one stage, each with one of two heads, and the other stage alone.
class RanksTest : public LeaseTableTest {
 protected:
  RanksTest() : LeaseTableTest(kLayout.WithHeads(1).BandBytes({2, 6}) / 2) {
    table_.Grant({2, 2, {20, 21}, {kFront, kFirst, kSecond}, kNeverUs}, 0);
  }
  static KvDataHeader Part(const KvWriter& writer, int page, int part) {
    KvDataHeader header = Header(writer, page, 1);
    header.slot = 2;
    header.generation = 2;
    header.part = part;
    header.bytes = kLayout.WithHeads(1).BandBytes({2, 6}) / 2;
    return header;
  }
  static KvCommit CommitOf(const KvWriter& writer, uint64_t checksum_sum, bool token) {
    KvCommit commit = Commit(writer, checksum_sum);
    commit.slot = 2;
    commit.generation = 2;
    commit.page_count = 2;
    commit.has_first_token = token;
    commit.first_token = token ? kToken : SampledToken{};
    return commit;
  }

  static inline const KvWriter kFirst{{"prefill-1-0", 301}, {2, 6}, {0, 2}};
  static inline const KvWriter kSecond{{"prefill-1-1", 302}, {2, 6}, {1, 2}};
};

TEST_F(RanksTest, EachWritesItsHeadsAndTheFirstCommitsTheToken) {
  std::vector<LeaseEvent> events;
  KvRefusal refusal{};
  for (const KvWriter& writer : {kFirst, kSecond}) {
    uint64_t sum = 0;
    for (const int page : {0, 1}) {
      for (const int part : {0, 1}) {
        const KvDataHeader header = Part(writer, page, part);
        const auto placement = table_.OnData(header, header.bytes, kNowUs, refusal);
        ASSERT_TRUE(placement.ok()) << placement.status();
        EXPECT_EQ(placement->heads, KvHeadsOf(2, writer.tensor_rank));
        EXPECT_EQ(placement->offset_bytes, static_cast<size_t>(part) * header.bytes);
        EXPECT_EQ(placement->page_bytes, header.bytes);
        table_.OnPlaced(placement->receipt, absl::OkStatus(), header.checksum, kNowUs, events);
        sum += header.checksum;
      }
    }
    const bool token = writer.tensor_rank.rank == 0;
    EXPECT_TRUE(table_.OnCommit(CommitOf(writer, sum, token), kNowUs, refusal, events).ok());
    EXPECT_TRUE(table_.WriterComplete(2, writer.instance));
  }
  EXPECT_TRUE(events.empty()) << "the other stage is missing";
  EXPECT_FALSE(table_.WriterComplete(2, kFront.instance));
  EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
}

TEST_F(RanksTest, RefusesAnotherRanksTokenAndAWholeStagesBytes) {
  std::vector<LeaseEvent> events;
  KvRefusal refusal{};
  KvDataHeader whole = Part(kSecond, 0, 0);
  whole.bytes *= 2;  // As if it had both heads.
  EXPECT_FALSE(table_.OnData(whole, whole.bytes, kNowUs, refusal).ok());
  EXPECT_EQ(refusal, KvRefusal::kBadLength);
  EXPECT_FALSE(table_.OnCommit(CommitOf(kSecond, 0, true), kNowUs, refusal, events).ok());
  EXPECT_EQ(refusal, KvRefusal::kBadCommit);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(InstanceOf(std::get<KvFailed>(events[0]).status), "prefill-1-1");
}

TEST_F(RanksTest, WantsTheTokenOfTheFirst) {
  std::vector<LeaseEvent> events;
  KvRefusal refusal{};
  EXPECT_FALSE(table_.OnCommit(CommitOf(kFirst, 0, false), kNowUs, refusal, events).ok());
  EXPECT_EQ(refusal, KvRefusal::kBadCommit);
}

// ---- m ranks to n ----

constexpr size_t kSmallPart = 300;  // Cuts most bands.

// A hand-off of two pages from two stages, of m ranks and of two, to one rank of n.
class RankTables {
 public:
  RankTables(int kv_heads, int m, int n) : kv_heads_(kv_heads), n_(n) {
    for (const auto& [layers, ranks] :
         {std::pair(LayerRange{0, 2}, 2), std::pair(LayerRange{2, 6}, m)}) {
      const auto sources = SourcesOf(kv_heads, ranks, n);
      for (const int rank : *sources) {
        const uint64_t incarnation = 200 + writers_.size();
        writers_.push_back({{absl::StrCat("p-", incarnation), incarnation}, layers, {rank, ranks}});
      }
    }
  }

  KvLayout LayoutOf(int rank) const {
    return KvLayout{.layers = 6, .kv_heads = 0, .head_dim = 4, .page_size = 4}.WithHeads(
        KvHeadsOf(kv_heads_, {rank, n_}).size());
  }
  std::vector<KvWriter> WritersOf(int rank) const {
    return WritersTo(writers_, kv_heads_, {{0, 6}, {rank, n_}});
  }
  std::unique_ptr<LeaseTable> Make(int rank) const {
    auto table = std::make_unique<LeaseTable>(
        LeaseTableOptions{.self = {absl::StrCat("d-", rank), 100 + static_cast<uint64_t>(rank)},
                          .layout = LayoutOf(rank),
                          .rank = {rank, n_},
                          .model_kv_heads = kv_heads_,
                          .slots = 2,
                          .part_bytes = kSmallPart});
    table->Grant({1, 7, {3, 5}, WritersOf(rank), kNeverUs}, 0);
    return table;
  }

  // All that `writer` sends to `rank`, and its commit, with what a first token's presence is.
  void HandOver(LeaseTable& table, int rank, const KvWriter& writer,
                std::vector<LeaseEvent>& events) const {
    const auto route = RouteBetween(kv_heads_, writer.tensor_rank, {rank, n_});
    const size_t band = LayoutOf(rank).WithHeads(route->heads.size()).BandBytes(writer.layers);
    KvDataHeader header{.slot = 1,
                        .generation = 7,
                        .decode_incarnation = 100 + static_cast<uint64_t>(rank),
                        .writer_incarnation = writer.instance.incarnation,
                        .layers = writer.layers,
                        .page_count = 1};
    KvRefusal refusal{};
    uint64_t sum = 0;
    for (header.first_page = 0; header.first_page < 2; ++header.first_page) {
      header.part = 0;
      for (size_t offset = 0; offset < band; offset += kSmallPart, ++header.part) {
        header.bytes = std::min(kSmallPart, band - offset);
        header.checksum = ++sum_;
        sum += header.checksum;
        const auto placement = table.OnData(header, header.bytes, kNowUs, refusal);
        ASSERT_TRUE(placement.ok()) << placement.status();
        EXPECT_EQ(placement->heads, route->heads);
        EXPECT_EQ(placement->offset_bytes, offset);
        EXPECT_EQ(placement->pages, std::vector<int>{header.first_page == 0 ? 3 : 5});
        table.OnPlaced(placement->receipt, absl::OkStatus(), header.checksum, kNowUs, events);
      }
    }
    KvCommit commit{.slot = 1,
                    .generation = 7,
                    .decode_incarnation = header.decode_incarnation,
                    .writer_incarnation = writer.instance.incarnation,
                    .layers = writer.layers,
                    .page_count = 2,
                    .checksum_sum = sum};
    commit.writer_id = writer.instance.id;
    commit.has_first_token = Draws(writer);
    if (commit.has_first_token) commit.first_token = kToken;
    EXPECT_TRUE(table.OnCommit(commit, kNowUs, refusal, events).ok());
    EXPECT_TRUE(table.CheckInvariants().ok()) << table.CheckInvariants();
  }
  static bool Draws(const KvWriter& writer) {
    return writer.layers.end == 6 && writer.tensor_rank.rank == 0;
  }

 private:
  const int kv_heads_;
  const int n_;
  std::vector<KvWriter> writers_;
  mutable uint64_t sum_ = 0;
};

TEST(LeaseRanksTest, EveryRankIsCommittedByThoseWhoWriteToIt) {
  for (const int kv_heads : {1, 2, 4}) {
    for (const int m : {1, 2, 4}) {
      for (const int n : {1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(kv_heads, " heads, ", m, " to ", n));
        const RankTables tables(kv_heads, m, n);
        for (int rank = 0; rank < n; ++rank) {
          const std::unique_ptr<LeaseTable> table = tables.Make(rank);
          std::vector<LeaseEvent> events;
          bool token = false;
          for (const KvWriter& writer : tables.WritersOf(rank)) {
            EXPECT_TRUE(events.empty()) << "before the last writer";
            tables.HandOver(*table, rank, writer, events);
            token = token || RankTables::Draws(writer);
          }
          ASSERT_EQ(events.size(), 1u);
          const auto& committed = std::get<KvCommitted>(events[0]);
          EXPECT_EQ(committed.first_token.has_value(), token);
          if (token) {
            EXPECT_EQ(*committed.first_token, kToken);
          }
          EXPECT_EQ(committed.bytes, 2 * tables.LayoutOf(rank).BandBytes({0, 6}));
          EXPECT_TRUE(token || rank > 0) << "rank 0 always hears from who draws";
        }
      }
    }
  }
}

// Two heads on two ranks: of a stage of one rank each gets half of every page, and no more.
TEST(LeaseRanksTest, RefusesBytesOfHeadsThatAreNotItsOwn) {
  const RankTables tables(2, 1, 2);
  const std::unique_ptr<LeaseTable> table = tables.Make(1);
  const KvWriter whole = tables.WritersOf(1).back();
  KvDataHeader header{.slot = 1,
                      .generation = 7,
                      .decode_incarnation = 101,
                      .writer_incarnation = whole.instance.incarnation,
                      .layers = whole.layers,
                      .page_count = 1,
                      .bytes = 2 * tables.LayoutOf(1).BandBytes(whole.layers)};
  KvRefusal refusal{};
  EXPECT_FALSE(table->OnData(header, header.bytes, kNowUs, refusal).ok());
  EXPECT_EQ(refusal, KvRefusal::kBadLength);
  header.bytes = kSmallPart;
  EXPECT_TRUE(table->OnData(header, header.bytes, kNowUs, refusal).ok());
  header.part = 1;
  header.writer_incarnation = 200;  // The other stage's rank that writes to rank 0.
  header.layers = {0, 2};
  EXPECT_FALSE(table->OnData(header, header.bytes, kNowUs, refusal).ok());
  EXPECT_EQ(refusal, KvRefusal::kNotAWriter);
}

// Four ranks have copies of one head, and so have two of decode: who draws writes to rank 0 alone.
TEST(LeaseRanksTest, AFollowerRefusesAFirstTokenFromAnotherWriter) {
  const RankTables tables(1, 4, 2);
  const std::unique_ptr<LeaseTable> table = tables.Make(1);
  const KvWriter writer = tables.WritersOf(1).back();
  EXPECT_EQ(writer.tensor_rank, (TensorRank{2, 4}));
  KvCommit commit{.slot = 1,
                  .generation = 7,
                  .decode_incarnation = 101,
                  .writer_incarnation = writer.instance.incarnation,
                  .layers = writer.layers,
                  .page_count = 2,
                  .has_first_token = true,
                  .first_token = kToken,
                  .writer_id = writer.instance.id};
  KvRefusal refusal{};
  std::vector<LeaseEvent> events;
  EXPECT_FALSE(table->OnCommit(commit, kNowUs, refusal, events).ok());
  EXPECT_EQ(refusal, KvRefusal::kBadCommit);
}

TEST(LeaseRanksDeathTest, AGrantNamesWhoWritesHere) {
  const RankTables tables(2, 2, 2);
  const std::unique_ptr<LeaseTable> table = tables.Make(0);
  EXPECT_DEATH(table->Grant({0, 8, {1}, tables.WritersOf(1), kNeverUs}, 0), "writes nothing");
}

}  // namespace
}  // namespace baton
