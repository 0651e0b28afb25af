#include "services/prefill/stage/input_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace baton::prefill {
namespace {

constexpr int kColumns = 1024;
constexpr int kMaxTokens = 2048;  // Two pieces of float32.

class InputBuffersTest : public testing::Test {
 protected:
  static InputBuffers Make(int count) {
    std::vector<MemoryBuffer> buffers(static_cast<size_t>(count));
    for (MemoryBuffer& buffer : buffers) {
      buffer = AllocateHost(size_t{kMaxTokens} * kColumns * sizeof(float)).value();
    }
    return {{kMaxTokens, kColumns, ElementType::kFloat32}, std::move(buffers)};
  }
  // A piece of a plan of `tokens`.
  static ActivationHeader Piece(uint64_t number, int tokens, int piece) {
    ActivationHeader header;
    header.epoch = 7;
    header.number = number;
    header.tokens = static_cast<uint32_t>(tokens);
    header.hidden_size = kColumns;
    header.offset = static_cast<uint64_t>(piece) * kActivationPieceBytes;
    header.bytes = std::min(kActivationPieceBytes, header.total_bytes() - header.offset);
    return header;
  }
  absl::StatusOr<MemorySpan> Accept(const ActivationHeader& header, int64_t now_us = 0) {
    return inputs_.Accept(header, header.bytes, now_us);
  }
  void Refuses(const ActivationHeader& header, const std::string& words) {
    EXPECT_EQ(Accept(header).status(),
              absl::FailedPreconditionError("activations of plan " + std::to_string(header.number) +
                                            ": " + words));
  }

  InputBuffers inputs_ = Make(2);
};

TEST_F(InputBuffersTest, APlanIsWholeWithItsLastPieceWhicheverThatIs) {
  EXPECT_EQ(inputs_.receiving_since_us(), kNeverUs);
  const auto second = Accept(Piece(1, kMaxTokens, 1), 50);
  const auto first = Accept(Piece(1, kMaxTokens, 0), 60);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(second->Host().data() - first->Host().data(),
            static_cast<ptrdiff_t>(kActivationPieceBytes));
  EXPECT_FALSE(inputs_.Placed(Piece(1, kMaxTokens, 1)).has_value());
  EXPECT_EQ(inputs_.receiving_since_us(), 50);
  const auto whole = inputs_.Placed(Piece(1, kMaxTokens, 0));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->since_us, 50);
  EXPECT_EQ(whole->data.Host().data(), first->Host().data());
  EXPECT_EQ(whole->data.Host().size(), 2 * kActivationPieceBytes);
  EXPECT_EQ(inputs_.receiving_since_us(), kNeverUs);
  EXPECT_EQ(inputs_.Of(1, kMaxTokens)->check, whole->check);
}

TEST_F(InputBuffersTest, RefusesWhatBreaksTheShapeOrTheCredits) {
  ActivationHeader wide = Piece(1, 64, 0);
  wide.hidden_size = kColumns / 2;
  Refuses(wide, "shape [64, 512] float32, expected at most [2048, 1024] float32");
  Refuses(Piece(1, kMaxTokens + 1, 0),
          "shape [2049, 1024] float32, expected at most [2048, 1024] float32");
  ActivationHeader other = Piece(1, 64, 0);
  other.type = ElementType::kBFloat16;
  Refuses(other, "shape [64, 1024] bfloat16, expected at most [2048, 1024] float32");
  EXPECT_EQ(
      inputs_.Accept(Piece(1, 64, 0), 5, 0).status(),
      absl::FailedPreconditionError("activations of plan 1: 5 bytes came, announced were 262144"));
  Refuses(Piece(0, 64, 0), "plans are counted from 1 on");
  EXPECT_TRUE(Accept(Piece(1, kMaxTokens, 0)).ok()) << "none of these has taken the buffer";
  Refuses(Piece(1, kMaxTokens, 0), "piece 0 of [2048, 1024] came twice or is of another shape");
  Refuses(Piece(1, 64, 0), "piece 0 of [64, 1024] came twice or is of another shape");
  Refuses(Piece(3, 64, 0), "plan 1 has the buffer");
  EXPECT_TRUE(Accept(Piece(2, 64, 0)).ok());
  EXPECT_EQ(Make(0).Accept(Piece(1, 64, 0), size_t{64} * kColumns * sizeof(float), 0).status(),
            absl::FailedPreconditionError("activations of plan 1: this stage takes none"));
}

TEST_F(InputBuffersTest, ABufferThatIsFreeAgainRemembersNothing) {
  ASSERT_TRUE(Accept(Piece(1, 64, 0)).ok());
  const auto before = inputs_.Placed(Piece(1, 64, 0))->check;
  inputs_.Free(1);
  EXPECT_TRUE(absl::IsInternal(inputs_.Of(1, 64).status()));
  ASSERT_TRUE(Accept(Piece(3, 32, 0)).ok());
  EXPECT_NE(inputs_.Placed(Piece(3, 32, 0))->check, before);
  EXPECT_TRUE(absl::IsInternal(inputs_.Of(3, 64).status())) << "of another size";
  EXPECT_TRUE(inputs_.Of(3, 32).ok());
  EXPECT_DEATH(inputs_.Free(1), "plan 3 has it");
}

TEST_F(InputBuffersTest, TheEndSettlesAllThatIsOpen) {
  const auto first = inputs_.Accept(ActivationSum{7, 1, 5}, 0);
  const auto second = inputs_.Accept(ActivationSum{7, 2, 5}, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  inputs_.End(absl::CancelledError("over"));
  EXPECT_EQ((*first)->Await(), absl::CancelledError("over"));
  EXPECT_EQ((*second)->Await(), absl::CancelledError("over"));
}

}  // namespace
}  // namespace baton::prefill
