// The first bytes of every active-message header: they tell Baton's messages from anything else
// that reaches the port, and carry the kind. Native byte order; UCX refuses to connect machines of
// different endianness.
#ifndef COMMON_TRANSPORT_FRAME_H_
#define COMMON_TRANSPORT_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace baton {

inline constexpr uint32_t kFrameMagic = 0x4e544142;  // "BATN"
inline constexpr uint16_t kFrameVersion = 1;

// All messages share one UCX id; the kind is in the frame, so that a foreign one is counted instead
// of being a warning of UCX.
inline constexpr unsigned kActiveMessageId = 0;

// Sent by UcxDataPlane itself when it connects, with its address as payload. What follows the frame
// is for peers that support it (pull_wire.h); older ones ignore it.
inline constexpr uint16_t kGreetingKind = 0xffff;

struct Frame {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  uint16_t kind = 0;
};
static_assert(sizeof(Frame) == 8, "the frame travels as its bytes");

// The frame at the start of `bytes`; nullopt if it is cut short, foreign or of another version.
inline std::optional<Frame> ParseFrame(std::span<const std::byte> bytes) {
  Frame frame;
  if (bytes.size() < sizeof(frame)) return std::nullopt;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  if (frame.magic != kFrameMagic || frame.version != kFrameVersion) return std::nullopt;
  return frame;
}

// The bytes of the parts, one behind the other.
inline std::vector<std::byte> Joined(std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> whole;
  size_t size = 0;
  for (const std::span<const std::byte> part : parts) size += part.size();
  whole.reserve(size);
  for (const std::span<const std::byte> part : parts) {
    whole.insert(whole.end(), part.begin(), part.end());
  }
  return whole;
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace baton

#endif  // COMMON_TRANSPORT_FRAME_H_
