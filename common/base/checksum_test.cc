#include "common/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace baton {
namespace {

std::vector<std::byte> Numbered(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  return bytes;
}

// Processes of several machines compare them, so they are the algorithm's and not the processor's.
TEST(ChecksumTest, ValuesAreTheSameOnEveryProcessor) {
  EXPECT_EQ(Checksum({}), 0x2d06800538d394c2u) << "XXH3-64 of nothing, seed 0";
  EXPECT_EQ(Checksum(Numbered(100)), 0xb1b059bf289f1ac8u);
  EXPECT_EQ(Checksum(Numbered(1000)), 0x9f911236d1a02bd7u)
      << "beyond 240 bytes wide instructions count";
  EXPECT_EQ(Checksum(Numbered(100'003)), 0x686fcecc669a014au);
}

TEST(ChecksumTest, WhereBytesLieDoesNotMatter) {
  const std::vector<std::byte> bytes = Numbered(5000);
  std::vector<std::byte> moved(5007);
  std::copy(bytes.begin(), bytes.end(), moved.begin() + 7);
  EXPECT_EQ(Checksum(std::span(moved).subspan(7)), Checksum(bytes));
}

TEST(ChecksumTest, AnyBitCounts) {
  std::vector<std::byte> bytes = Numbered(4096);
  const uint64_t before = Checksum(bytes);
  for (const size_t at : {size_t{0}, size_t{1023}, size_t{4095}}) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_NE(Checksum(bytes), before) << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST(ChecksumTest, LettingOthersRunChangesNothing) {
  const std::vector<std::byte> bytes = Numbered((1 << 20) + 77);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{256 << 10}, size_t{(256 << 10) + 1},
                            size_t{1 << 20}, bytes.size()}) {
    const auto part = std::span<const std::byte>(bytes).first(size);
    EXPECT_EQ(YieldingChecksum(part), Checksum(part)) << size;
  }
}

TEST(ChecksumTest, PartsOneBehindTheOtherHaveTheChecksumOfTheWhole) {
  const std::vector<std::byte> bytes = Numbered(10'000);
  RunningChecksum checksum;
  EXPECT_EQ(checksum.value(), Checksum({}));
  std::span<const std::byte> left = bytes;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{239}, size_t{4096}, size_t{5664}}) {
    checksum.Add(left.first(size));
    left = left.subspan(size);
    const auto so_far = std::span<const std::byte>(bytes).first(bytes.size() - left.size());
    EXPECT_EQ(checksum.value(), Checksum(so_far)) << so_far.size();
  }
  EXPECT_TRUE(left.empty());
}

}  // namespace
}  // namespace baton
