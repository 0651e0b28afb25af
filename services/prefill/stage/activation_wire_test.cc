#include "services/prefill/stage/activation_wire.h"

#include <gtest/gtest.h>

namespace baton::prefill {
namespace {

const ActivationHeader kHeader{7, 3, 64, 128, 0, uint64_t{64} * 128 * 4};
const ActivationSum kSum{7, 3, 0x123456789abcdef0};

TEST(ActivationWireTest, RoundTrips) {
  EXPECT_EQ(*DecodeActivationMessage(EncodeActivationMessage(kHeader)), ActivationMessage(kHeader));
  const ActivationCredit credit{7, 3};
  EXPECT_EQ(*DecodeActivationMessage(EncodeActivationMessage(credit)), ActivationMessage(credit));
  EXPECT_EQ(*DecodeActivationMessage(EncodeActivationMessage(kSum)), ActivationMessage(kSum));
}

TEST(ActivationWireTest, TheTypeOfTheElementsIsPartOfTheShape) {
  ActivationHeader header = kHeader;
  header.type = ElementType::kBFloat16;
  EXPECT_FALSE(DecodeActivationMessage(EncodeActivationMessage(header)).ok()) << "too many bytes";
  header.bytes /= 2;
  EXPECT_EQ(*DecodeActivationMessage(EncodeActivationMessage(header)), ActivationMessage(header));
  header.type = static_cast<ElementType>(2);
  EXPECT_FALSE(DecodeActivationMessage(EncodeActivationMessage(header)).ok()) << "no such type";
}

TEST(ActivationWireTest, RefusesEveryFlippedBitAndEveryLength) {
  for (const ActivationMessage& message : {ActivationMessage(kHeader), ActivationMessage(kSum),
                                           ActivationMessage(ActivationCredit{7, 3})}) {
    const std::vector<std::byte> good = EncodeActivationMessage(message);
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::vector<std::byte> bad = good;
      bad[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(DecodeActivationMessage(bad).ok()) << bit;
    }
    for (size_t size = 0; size < good.size(); ++size) {
      EXPECT_FALSE(DecodeActivationMessage(std::span(good).first(size)).ok()) << size;
    }
  }
}

TEST(ActivationWireTest, RefusesBytesThatDisagreeWithTheShape) {
  ActivationHeader header = kHeader;
  header.bytes += 4;
  EXPECT_FALSE(DecodeActivationMessage(EncodeActivationMessage(header)).ok());
  header = kHeader;
  header.tokens = 0;
  header.bytes = 0;
  EXPECT_FALSE(DecodeActivationMessage(EncodeActivationMessage(header)).ok());
}

TEST(ActivationWireTest, TakesThePiecesOfTheShapeAndNoOthers) {
  // 1,500 x 2,048 floats: two whole pieces and the rest.
  ActivationHeader header{7, 3, 1500, 2048, 0, kActivationPieceBytes};
  const auto taken = [&header] {
    return DecodeActivationMessage(EncodeActivationMessage(header)).ok();
  };
  EXPECT_TRUE(taken());
  header.offset = 2 * kActivationPieceBytes;
  EXPECT_FALSE(taken()) << "the last piece is shorter";
  header.bytes = header.total_bytes() - header.offset;
  EXPECT_TRUE(taken());
  header.offset -= 4;
  header.bytes += 4;
  EXPECT_FALSE(taken()) << "pieces begin at their own places";
  header.offset = 3 * kActivationPieceBytes;
  EXPECT_FALSE(taken());
}

}  // namespace
}  // namespace baton::prefill
