#include "common/engine/attention/host_kv_memory.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace baton {
namespace {

// Two layers, two heads, four tokens of two floats: 256 bytes a page.
constexpr KvGeometry kGeometry{.layer_begin = 3,
                               .layer_end = 5,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .page_size = 4,
                               .page_count = 3};

class HostKvMemoryTest : public testing::Test {
 protected:
  HostKvMemoryTest() : bytes_(kGeometry.PageBytes() * 3), memory_(kGeometry, bytes_) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i % 251 + 1);
  }
  ExportedKv Export(const KvPiece& piece) {
    std::optional<ExportedKv> result;
    memory_.Export({piece},
                   [&](const absl::StatusOr<ExportedKv>& exported) { result = *exported; });
    EXPECT_TRUE(result.has_value()) << "it is there at once";
    memory_.EndExport(result->export_id);
    return *result;
  }

  std::vector<std::byte> bytes_;
  HostKvMemory memory_;
};

TEST_F(HostKvMemoryTest, ExportsAndLandsInThePagesThemselves) {
  // Over the edge of page 1.
  const KvPiece piece{1, 200, 100};
  const ExportedKv exported = Export(piece);
  EXPECT_EQ(exported.memory.data, &bytes_[256 + 200]);
  EXPECT_EQ(exported.memory.bytes, 100u);
  EXPECT_EQ(exported.checksum, XXH3_64bits(&bytes_[456], 100));
  EXPECT_EQ(memory_.Landing(piece).data, exported.memory.data);
}

TEST_F(HostKvMemoryTest, SeveralPiecesAreGatheredUntilTheExportEnds) {
  std::vector<std::byte> together(bytes_.begin() + 512, bytes_.begin() + 612);
  together.insert(together.end(), bytes_.begin() + 10, bytes_.begin() + 30);
  together.insert(together.end(), bytes_.begin() + 250, bytes_.begin() + 260);  // Over an edge.
  std::vector<ExportedKv> exports;
  for (int i = 0; i < 2; ++i) {
    memory_.Export(
        {{2, 0, 100}, {0, 10, 20}, {0, 250, 10}},
        [&](const absl::StatusOr<ExportedKv>& exported) { exports.push_back(*exported); });
  }
  ASSERT_EQ(exports.size(), 2u);
  EXPECT_NE(exports[0].export_id, exports[1].export_id);
  memory_.EndExport(exports[0].export_id);
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0});  // It is a copy.
  const std::span<const std::byte> gathered = exports[1].memory.Host();
  EXPECT_TRUE(std::equal(gathered.begin(), gathered.end(), together.begin(), together.end()));
  EXPECT_EQ(exports[1].checksum, XXH3_64bits(together.data(), together.size()));
  memory_.EndExport(exports[1].export_id);
}

TEST_F(HostKvMemoryTest, ALandingsChecksumIsThatOfItsPiecesInOrder) {
  std::vector<std::byte> together(bytes_.begin() + 512, bytes_.begin() + 612);
  together.insert(together.end(), bytes_.begin() + 10, bytes_.begin() + 30);
  std::optional<uint64_t> checksum;
  memory_.FinishLanding({{2, 0, 100}, {0, 10, 20}},
                        [&](const absl::StatusOr<uint64_t>& landed) { checksum = *landed; });
  EXPECT_EQ(checksum, XXH3_64bits(together.data(), together.size()));
}

TEST_F(HostKvMemoryTest, ClearsBehindTheTokensOfEveryHead) {
  const std::vector<std::byte> before = bytes_;
  memory_.ClearTail(1, 3);
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const bool in_page = i / 256 == 1;
    const bool behind = i % 32 >= 24;  // A head is 32 bytes, a token 8.
    EXPECT_EQ(bytes_[i], in_page && behind ? std::byte{0} : before[i]) << i;
  }
}

using HostKvMemoryDeathTest = HostKvMemoryTest;

TEST_F(HostKvMemoryDeathTest, NothingOutsideOfThePagesIsGivenAway) {
  EXPECT_DEATH(memory_.Landing({3, 0, 1}), "page 3");
  EXPECT_DEATH(memory_.Landing({-1, 0, 1}), "page -1");
  EXPECT_DEATH(memory_.Landing({2, 200, 57}), "57 bytes from 200 of page 2");
  EXPECT_DEATH(memory_.Landing({2, SIZE_MAX, 2}), "of page 2");
  const auto ignored = [](const absl::StatusOr<ExportedKv>&) {};
  EXPECT_DEATH(memory_.Export({{0, 0, 8}, {2, 255, 2}}, ignored), "2 bytes from 255 of page 2");
  EXPECT_DEATH(memory_.EndExport(5), "export 5");
}

}  // namespace
}  // namespace baton
