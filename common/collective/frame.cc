#include "common/collective/frame.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/strings.h"

namespace baton::collective {
namespace {

// "BATC" and the version of the header.
constexpr uint32_t kMagic = 0x43544142 + (1U << 24);

bool Known(const FrameHeader& header) {
  return header.magic == kMagic && header.kind >= FrameKind::kHello &&
         header.kind <= FrameKind::kAnswer && header.collective <= CollectiveKind::kReceive &&
         header.type <= ElementType::kBFloat16;
}

uint64_t HashText(uint64_t hash, const std::string& text) {
  hash = Mix64(hash ^ text.size());
  for (const char character : text) hash = Mix64(hash ^ static_cast<unsigned char>(character));
  return hash;
}

}  // namespace

size_t WriteFrame(FrameHeader header, std::span<const std::byte> payload,
                  std::span<std::byte> room) {
  BATON_CHECK(sizeof(header) + payload.size() <= room.size())
      << payload.size() << " bytes for a frame of " << room.size();
  header.magic = kMagic;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  std::memcpy(room.data(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(room.data() + sizeof(header), payload.data(), payload.size());
  return sizeof(header) + payload.size();
}

std::optional<Frame> ParseFrame(std::span<const std::byte> message) {
  Frame frame;
  if (message.size() < sizeof(frame.header)) return std::nullopt;
  std::memcpy(&frame.header, message.data(), sizeof(frame.header));
  // The transport delivers into buffers of a fixed size, so only the header tells a message's
  // length.
  if (!Known(frame.header) || frame.header.payload_bytes > message.size() - sizeof(frame.header)) {
    return std::nullopt;
  }
  frame.payload = message.subspan(sizeof(frame.header), frame.header.payload_bytes);
  return frame;
}

std::string DescribeData(const FrameHeader& header) {
  std::string text = absl::StrCat(CollectiveName(header.collective), " ", header.sequence);
  switch (header.collective) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReceive:
      absl::StrAppend(&text, " from rank ", header.peer);
      break;
    case CollectiveKind::kSend:
      absl::StrAppend(&text, " to rank ", header.peer);
      break;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
      break;
  }
  return Concat(text, " of ", header.bytes_total, " bytes of ", ElementTypeName(header.type));
}

uint64_t GroupHash(const GroupDescription& group) {
  uint64_t hash = HashText(Mix64(group.epoch), group.name);
  for (const std::string& member : group.members) hash = HashText(hash, member);
  return std::max<uint64_t>(hash, 1);
}

std::string DescribeGroup(const GroupDescription& group) {
  std::string text = absl::StrCat(group.name, " epoch ", group.epoch, " rank ", group.rank, " of ",
                                  group.size(), ": ", absl::StrJoin(group.members, ", "));
  text.resize(std::min(text.size(), kFrameTextMax));
  return text;
}

}  // namespace baton::collective
