// The messages between two ranks of a group: a header of 64 bytes and a payload. Native byte order,
// like all tensors that Baton sends; both ends check the magic.
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
  kHello = 1,  // The first frame in each direction: the sender's view of the group.
  kData,       // A block of a collective's data.
  kCredit,     // Only `consumed`.
  kAbort,      // The group has ended, and why.
  kLeave,      // The sender has left the group.
  kAsk,        // The sender has waited long; asks which ranks the receiver waits for.
  kAnswer,     // The answer: one bit for each rank.
};

struct FrameHeader {
  uint32_t magic = 0;  // WriteFrame's.
  FrameKind kind = FrameKind::kHello;
  // kData: the collective as the sender knows it.
  CollectiveKind collective = CollectiveKind::kAllReduce;
  ElementType type = ElementType::kFloat32;
  uint8_t unused = 0;  // Was the order of a sum.
  uint32_t payload_bytes = 0;
  int32_t peer = 0;       // kData: the root or sender. kAbort: the rank at fault, or -1.
  uint64_t sequence = 0;  // kData: the sender's number of the collective. kAbort: the status code.
  uint64_t bytes_total = 0;  // kData: what each rank sends or receives. kAnswer: the ranks.
  uint64_t offset = 0;       // kData: of the payload, in what the sender sends to the receiver.
  uint64_t consumed = 0;  // How many of the receiver's data frames the sender has read: its credit.
  uint64_t group = 0;     // Hash of name, epoch and members.
  uint32_t step = 0;      // kData: a long all-reduce has two.
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 64, "the header travels as its bytes");

// Longer text in a frame is cut to this.
inline constexpr size_t kFrameTextMax = 4096;

// Writes header and payload into `room`, which must hold both; returns the bytes written.
size_t WriteFrame(FrameHeader header, std::span<const std::byte> payload,
                  std::span<std::byte> room);

struct Frame {
  FrameHeader header;
  std::span<const std::byte> payload;
};

// The frame in `message`; nullopt if it is malformed or incomplete.
std::optional<Frame> ParseFrame(std::span<const std::byte> message);

// "all-reduce 17 of 4096 bytes of float32", "broadcast 3 from rank 1 of 8 bytes of bfloat16"
std::string DescribeData(const FrameHeader& header);

// The hash of everything that must be equal on all ranks of a group; never zero.
uint64_t GroupHash(const GroupDescription& group);

// The text of a kHello: "stage 1 epoch 7 rank 0 of 2: a, b".
std::string DescribeGroup(const GroupDescription& group);

}  // namespace baton::collective

#endif  // COMMON_COLLECTIVE_FRAME_H_
