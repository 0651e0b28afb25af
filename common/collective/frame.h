// What two ranks of a group say to each other: a header of 64 bytes and a payload, as one message.
// Native byte order, like everything that moves tensors here; both ends check the magic.
#ifndef COMMON_COLLECTIVE_FRAME_H_
#define COMMON_COLLECTIVE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/collective/communicator.h"

namespace baton::collective {

enum class FrameKind : uint8_t {
  kHello = 1,  // The first of each direction: who the sender takes both for.
  kData,       // A part of a collective's data.
  kCredit,     // Nothing but `consumed`.
  kAbort,      // The group has ended, and why.
  kLeave,      // The sender takes part in nothing any more.
  kAsk,        // The sender has waited long: for whom does the receiver wait?
  kAnswer,     // For these, a bit for each rank.
};

struct FrameHeader {
  uint32_t magic = 0;  // WriteFrame's.
  FrameKind kind = FrameKind::kHello;
  // kData: the collective as its sender knows it.
  CollectiveKind collective = CollectiveKind::kAllReduce;
  ElementType type = ElementType::kFloat32;
  ReduceOrder order = ReduceOrder::kRankOrder;
  uint32_t payload_bytes = 0;
  int32_t peer = 0;          // kData: root, or who sends. kAbort: who is blamed, or -1.
  uint64_t sequence = 0;     // kData: which of its sender's. kAbort: the status's code.
  uint64_t bytes_total = 0;  // kData: of what each rank gives or gets. kAnswer: the ranks.
  uint64_t offset = 0;       // kData: of the payload in what this rank has for the other.
  uint64_t consumed = 0;     // Data frames of the receiver's that the sender has read: its credit.
  uint64_t group = 0;        // Hash of name, epoch and members.
  uint32_t step = 0;         // kData: an all-reduce has two if it is long.
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 64, "the header travels as its bytes");

// Text that a frame carries is cut at this.
inline constexpr size_t kFrameTextMax = 4096;

// Header and payload into `room`, which must hold both; the bytes written.
size_t WriteFrame(FrameHeader header, std::span<const std::byte> payload,
                  std::span<std::byte> room);

struct Frame {
  FrameHeader header;
  std::span<const std::byte> payload;
};

// The frame that `message` is; nullopt for anything else, whole or not.
std::optional<Frame> ParseFrame(std::span<const std::byte> message);

// "all-reduce 17 of 4096 bytes of float32", "broadcast 3 from rank 1 of 8 bytes of bfloat16"
std::string DescribeData(const FrameHeader& header);

// Of what has to be equal on all ranks of a group; never zero.
uint64_t GroupHash(const GroupDescription& group);

// What a kHello carries: "stage 1 epoch 7 rank 0 of 2: a, b".
std::string DescribeGroup(const GroupDescription& group);

}  // namespace baton::collective

#endif  // COMMON_COLLECTIVE_FRAME_H_
