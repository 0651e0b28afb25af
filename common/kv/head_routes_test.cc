#include "common/kv/head_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace baton {
namespace {

std::vector<HeadRoute> Routes(int kv_heads, int sources, int destinations) {
  auto routes = HeadRoutes(kv_heads, sources, destinations);
  EXPECT_TRUE(routes.ok()) << routes.status();
  return *std::move(routes);
}

std::vector<int> Sources(int kv_heads, int sources, int destinations) {
  auto ranks = SourcesOf(kv_heads, sources, destinations);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  return *std::move(ranks);
}

TEST(HeadRoutesTest, EqualRanksSendToTheirCounterparts) {
  for (const int kv_heads : {1, 2, 4, 8}) {
    for (const int ranks : {1, 2, 4}) {
      const auto routes = Routes(kv_heads, ranks, ranks);
      ASSERT_EQ(routes.size(), static_cast<size_t>(ranks)) << kv_heads;
      for (const HeadRoute& route : routes) {
        EXPECT_EQ(route.source_rank, route.destination_rank) << kv_heads;
        EXPECT_EQ(route.heads, KvHeadsOf(kv_heads, {route.source_rank, ranks}));
        EXPECT_EQ(route.source_place, 0);
        EXPECT_EQ(route.destination_place, 0);
      }
    }
  }
}

// Source, heads, destination, place in the source, place in the destination.
TEST(HeadRoutesTest, TablesOfUnequalRanks) {
  EXPECT_EQ(
      Routes(8, 4, 1),
      (std::vector<HeadRoute>{
          {0, {0, 2}, 0, 0, 0}, {1, {2, 4}, 0, 0, 2}, {2, {4, 6}, 0, 0, 4}, {3, {6, 8}, 0, 0, 6}}));
  EXPECT_EQ(Routes(8, 1, 2), (std::vector<HeadRoute>{{0, {0, 4}, 0, 0, 0}, {0, {4, 8}, 1, 4, 0}}));
  EXPECT_EQ(
      Routes(8, 2, 4),
      (std::vector<HeadRoute>{
          {0, {0, 2}, 0, 0, 0}, {0, {2, 4}, 1, 2, 0}, {1, {4, 6}, 2, 0, 0}, {1, {6, 8}, 3, 2, 0}}));
}

TEST(HeadRoutesTest, HeadsThatSeveralRanksHoldAreSentOnce) {
  // Prefill ranks 0 and 1 hold head 0, 2 and 3 head 1.
  EXPECT_EQ(Routes(2, 4, 1), (std::vector<HeadRoute>{{0, {0, 1}, 0, 0, 0}, {2, {1, 2}, 0, 0, 1}}));
  EXPECT_EQ(Routes(2, 4, 2), (std::vector<HeadRoute>{{0, {0, 1}, 0, 0, 0}, {2, {1, 2}, 1, 0, 0}}));
  // On the decode side each copy is a process of its own and needs the bytes.
  EXPECT_EQ(
      Routes(2, 2, 4),
      (std::vector<HeadRoute>{
          {0, {0, 1}, 0, 0, 0}, {0, {0, 1}, 1, 0, 0}, {1, {1, 2}, 2, 0, 0}, {1, {1, 2}, 3, 0, 0}}));
  // Both have copies, and the decode side's take turns.
  EXPECT_EQ(Routes(1, 4, 2), (std::vector<HeadRoute>{{0, {0, 1}, 0, 0, 0}, {2, {0, 1}, 1, 0, 0}}));
}

// The rank at the same position among the copies of its head on both sides.
TEST(HeadRoutesTest, CopiesTakeTurnsInTheirOrder) {
  EXPECT_EQ(
      Routes(4, 8, 2),
      (std::vector<HeadRoute>{
          {0, {0, 1}, 0, 0, 0}, {2, {1, 2}, 0, 0, 1}, {4, {2, 3}, 1, 0, 0}, {6, {3, 4}, 1, 0, 1}}));
  EXPECT_EQ(Routes(2, 8, 2), (std::vector<HeadRoute>{{0, {0, 1}, 0, 0, 0}, {4, {1, 2}, 1, 0, 0}}));
  for (const int kv_heads : {1, 2, 4, 8}) {
    for (const int m : {1, 2, 4, 8, 16}) {
      for (const int n : {1, 2, 4, 8, 16}) {
        const int copies = std::max(1, m / kv_heads);
        const int copies_there = std::max(1, n / kv_heads);
        for (const HeadRoute& route : Routes(kv_heads, m, n)) {
          EXPECT_EQ(route.source_rank % copies,
                    route.destination_rank % copies_there * copies / copies_there)
              << kv_heads << " heads, " << m << " to " << n;
        }
      }
    }
  }
}

TEST(HeadRoutesTest, SourcesAreThoseThatAnyDestinationHearsFrom) {
  EXPECT_EQ(Sources(8, 4, 1), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(Sources(2, 8, 1), (std::vector<int>{0, 4}));
  EXPECT_EQ(Sources(2, 8, 4), (std::vector<int>{0, 2, 4, 6})) << "copies take turns";
  EXPECT_EQ(Sources(1, 4, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(SourcesOf(4, 3, 1).status().code(), absl::StatusCode::kInvalidArgument);
  for (const int kv_heads : {1, 2, 4, 8}) {
    for (const int m : {1, 2, 4, 8}) {
      for (const int n : {1, 2, 4, 8}) {
        std::set<int> expected;
        for (const HeadRoute& route : Routes(kv_heads, m, n)) expected.insert(route.source_rank);
        const std::vector<int> sources = Sources(kv_heads, m, n);
        EXPECT_EQ(sources, std::vector<int>(expected.begin(), expected.end()))
            << kv_heads << " heads, " << m << " to " << n;
        // Copies are dealt out as far as there are destinations to deal them to.
        EXPECT_EQ(static_cast<int>(sources.size()), std::min(m, std::max(kv_heads, n)));
      }
    }
  }
}

// Two stages with different numbers of ranks: every destination gets each of its heads of each
// stage once, and SourcesOf names only ranks that write there.
TEST(HeadRoutesTest, WritersToADestinationHaveItsHeadsOnce) {
  for (const int kv_heads : {1, 2, 4, 8}) {
    for (const int m : {1, 2, 4, 8}) {
      for (const int n : {1, 2, 4, 8}) {
        std::vector<KvWriter> all;
        for (const auto& [layers, ranks] :
             {std::pair(LayerRange{0, 3}, m), std::pair(LayerRange{3, 5}, 2)}) {
          for (const int rank : Sources(kv_heads, ranks, n)) {
            all.push_back({{std::to_string(all.size()), 1}, layers, {rank, ranks}});
          }
        }
        std::set<KvWriter> used;
        for (int d = 0; d < n; ++d) {
          const std::vector<KvWriter> writers = WritersTo(all, kv_heads, {{0, 5}, {d, n}});
          used.insert(writers.begin(), writers.end());
          EXPECT_TRUE(std::is_sorted(writers.begin(), writers.end()));
          std::map<int, std::vector<int>> heads;  // By the stage's first layer.
          for (const KvWriter& writer : writers) {
            const auto route = RouteBetween(kv_heads, writer.tensor_rank, {d, n});
            ASSERT_TRUE(route.has_value());
            for (int head = route->heads.begin; head < route->heads.end; ++head) {
              heads[writer.layers.begin].push_back(head);
            }
          }
          const IndexRange wanted = KvHeadsOf(kv_heads, {d, n});
          std::vector<int> expected(static_cast<size_t>(wanted.size()));
          std::iota(expected.begin(), expected.end(), wanted.begin);
          EXPECT_EQ(heads[0], expected) << kv_heads << " heads, " << m << " to " << d << "/" << n;
          EXPECT_EQ(heads[3], expected) << kv_heads << " heads, 2 to " << d << "/" << n;
        }
        EXPECT_EQ(used.size(), all.size());
      }
    }
  }
}

TEST(HeadRoutesTest, ThereIsOneRouteBetweenTwoRanksAtMost) {
  EXPECT_EQ(RouteBetween(8, {0, 1}, {1, 2}), (HeadRoute{0, {4, 8}, 1, 4, 0}));
  EXPECT_EQ(RouteBetween(8, {0, 2}, {1, 2}), std::nullopt) << "no head in common";
  EXPECT_EQ(RouteBetween(2, {1, 4}, {0, 1}), std::nullopt) << "a copy of what rank 0 sends";
  EXPECT_DEATH(RouteBetween(4, {0, 3}, {0, 1}), "neither divides the other");
}

TEST(HeadRoutesTest, RefusesNumbersOfWhichNeitherDividesTheOther) {
  const auto refusal = [](int kv_heads, int sources, int destinations) {
    const absl::Status status = HeadRoutes(kv_heads, sources, destinations).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(5, 2, 1), "2 prefill ranks can't share 5 KV heads: neither divides the other");
  EXPECT_EQ(refusal(4, 3, 1), "3 prefill ranks can't share 4 KV heads: neither divides the other");
  EXPECT_EQ(refusal(4, 1, 6), "6 decode ranks can't share 4 KV heads: neither divides the other");
  refusal(0, 1, 1);
  refusal(4, 0, 1);
  refusal(4, 1, -2);
}

// ---- Bytes ----

constexpr size_t kHeadBytes = 8;

// A band's page in which every head says which it is: its layer, key or value, and the model's
// head.
std::vector<uint64_t> NamedPage(const KvBand& band, IndexRange heads) {
  std::vector<uint64_t> page;
  for (int layer = band.layers.begin; layer < band.layers.end; ++layer) {
    for (uint64_t value = 0; value < static_cast<uint64_t>(band.planes); ++value) {
      for (int head = heads.begin; head < heads.end; ++head) {
        page.push_back((static_cast<uint64_t>(layer) + 1) << 32 | value << 16 |
                       static_cast<uint64_t>(head));
      }
    }
  }
  EXPECT_EQ(page.size() * kHeadBytes, band.PageBytes());
  return page;
}

// Carries a page out along all routes of all stages; every byte must be written once, in its place.
void ExpectPageArrives(int kv_heads, int sources, int destinations,
                       const std::vector<LayerRange>& stages, int planes = 2) {
  SCOPED_TRACE(testing::Message() << kv_heads << " heads, " << sources << " to " << destinations
                                  << " ranks, " << stages.size() << " stages");
  const LayerRange all = {stages.front().begin, stages.back().end};
  std::map<int, std::vector<uint64_t>> arrived;
  std::map<int, std::vector<int>> writes;
  for (const HeadRoute& route : Routes(kv_heads, sources, destinations)) {
    const IndexRange held = KvHeadsOf(kv_heads, {route.source_rank, sources});
    const IndexRange wanted = KvHeadsOf(kv_heads, {route.destination_rank, destinations});
    const KvBand destination = {all, wanted.size(), kHeadBytes, planes};
    auto& page = arrived[route.destination_rank];
    auto& written = writes[route.destination_rank];
    page.resize(destination.PageBytes() / kHeadBytes);
    written.resize(page.size());
    for (const LayerRange& layers : stages) {
      const KvBand source = {layers, held.size(), kHeadBytes, planes};
      const std::vector<uint64_t> from = NamedPage(source, held);
      const std::vector<PageRun> runs = PageRuns(route, source, destination);
      const bool same_heads = held == wanted;
      EXPECT_EQ(runs.size(), same_heads ? 1u : 2 * static_cast<size_t>(layers.size()));
      for (const PageRun& run : runs) {
        ASSERT_LE(run.source_offset + run.bytes, source.PageBytes());
        ASSERT_LE(run.destination_offset + run.bytes, destination.PageBytes());
        for (size_t at = 0; at < run.bytes; at += kHeadBytes) {
          const size_t to = (run.destination_offset + at) / kHeadBytes;
          page[to] = from[(run.source_offset + at) / kHeadBytes];
          ++written[to];
        }
      }
    }
  }
  ASSERT_EQ(arrived.size(), static_cast<size_t>(destinations));
  for (const auto& [rank, page] : arrived) {
    const IndexRange wanted = KvHeadsOf(kv_heads, {rank, destinations});
    EXPECT_EQ(page, NamedPage({all, wanted.size(), kHeadBytes, planes}, wanted)) << "rank " << rank;
    EXPECT_EQ(writes[rank], std::vector<int>(page.size(), 1)) << "rank " << rank;
  }
}

TEST(PageRunsTest, EveryByteArrivesOnceWhateverTheRanksAndStages) {
  for (const int kv_heads : {1, 2, 4, 8}) {
    for (const int sources : {1, 2, 4}) {
      for (const int destinations : {1, 2, 4}) {
        ExpectPageArrives(kv_heads, sources, destinations, {{0, 4}});
        ExpectPageArrives(kv_heads, sources, destinations, {{0, 1}, {1, 4}, {4, 6}});
      }
    }
  }
}

TEST(PageRunsTest, RowsOfOnePlaneArriveOnEveryRank) {
  for (const int sources : {1, 2, 4}) {
    for (const int destinations : {1, 2, 4}) {
      ExpectPageArrives(1, sources, destinations, {{0, 1}, {1, 4}, {4, 6}}, /*planes=*/1);
    }
  }
}

TEST(PageRunsTest, LayersThatOneSideLacksMoveNothing) {
  const HeadRoute route = {0, {0, 2}, 0, 0, 0};
  EXPECT_TRUE(PageRuns(route, {{0, 2}, 2, kHeadBytes}, {{2, 4}, 2, kHeadBytes}).empty());
  EXPECT_EQ(PageRuns(route, {{0, 3}, 2, kHeadBytes}, {{2, 4}, 2, kHeadBytes}),
            (std::vector<PageRun>{{size_t{8} * kHeadBytes, 0, 4 * kHeadBytes}}));
}

}  // namespace
TEST(HeadRoutesTest, CutsRunsWhereTheSourceIsCut) {
  const std::vector<PageRun> runs{{0, 100, 10}, {10, 300, 10}};
  EXPECT_EQ(CutRuns(runs, 0, 20), runs);
  EXPECT_EQ(CutRuns(runs, 4, 3), (std::vector<PageRun>{{4, 104, 3}}));
  EXPECT_EQ(CutRuns(runs, 5, 10), (std::vector<PageRun>{{5, 105, 5}, {10, 300, 5}}));
  EXPECT_EQ(CutRuns(runs, 10, 100), (std::vector<PageRun>{{10, 300, 10}}));
  EXPECT_TRUE(CutRuns(runs, 20, 5).empty());
}

// Heads 2 and 3 of a process that has four: two runs a layer, and cut where the message is.
TEST(MessageRunsTest, AreWhereAMessagesBytesLieInAPage) {
  const KvBand held{{0, 1}, 4, 8};
  EXPECT_EQ(MessageRuns({0, 1}, {2, 4}, held, 0, 0, 32),
            (std::vector<PageRun>{{0, 16, 16}, {16, 48, 16}}));
  EXPECT_EQ(MessageRuns({0, 1}, {2, 4}, held, 0, 8, 16),
            (std::vector<PageRun>{{8, 24, 8}, {16, 48, 8}}));
  EXPECT_EQ(MessageRuns({0, 1}, {2, 6}, held, 2, 0, 64), (std::vector<PageRun>{{0, 0, 64}}))
      << "all heads that are there are one run";
  EXPECT_EQ(MessageRuns({1, 2}, {2, 3}, KvBand{{0, 2}, 2, 8}, 1, 0, 16),
            (std::vector<PageRun>{{0, 40, 8}, {8, 56, 8}}));
}

TEST(MessageRunsDeathTest, HeadsThatAreNotThere) {
  const KvBand held{{0, 1}, 2, 8};
  EXPECT_DEATH(MessageRuns({0, 1}, {0, 1}, held, 1, 0, 16), "heads .0, 1. of 2 from 1");
  EXPECT_DEATH(MessageRuns({0, 1}, {2, 4}, held, 1, 0, 32), "heads .2, 4. of 2 from 1");
}

}  // namespace baton
