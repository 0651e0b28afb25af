#include "services/prefill/stage/activation_wire.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kVersion = 3;
// A kind of message and its number of 64-bit words: version | kind << 8, its fields, and the
// checksum of these.
struct Kind {
  uint64_t tag;
  size_t words;
};
constexpr Kind kCredit{kVersion | 2 << 8, 4};
constexpr Kind kSum{kVersion | 3 << 8, 5};
constexpr Kind kPiece{kVersion | 4 << 8, 9};

// Headers are a few 64-bit words, so they need no writer and reader of their own.
std::vector<std::byte> Encode(const std::vector<uint64_t>& words) {
  std::vector<std::byte> bytes;
  bytes.reserve((words.size() + 1) * sizeof(uint64_t));
  const auto append = [&bytes](uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<std::byte>(word >> shift));
  };
  for (const uint64_t word : words) append(word);
  append(Checksum(bytes));
  return bytes;
}

uint64_t Word(std::span<const std::byte> bytes, size_t index) {
  uint64_t word = 0;
  for (size_t i = 0; i < sizeof(word); ++i) {
    word |= std::to_integer<uint64_t>(bytes[index * sizeof(word) + i]) << (8 * i);
  }
  return word;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("activation message: ", what));
}

absl::StatusOr<ActivationMessage> DecodePiece(std::span<const std::byte> bytes) {
  constexpr uint64_t kMax = UINT32_MAX;
  const uint64_t tokens = Word(bytes, 3);
  const uint64_t hidden_size = Word(bytes, 4);
  if (tokens == 0 || tokens > kMax || hidden_size == 0 || hidden_size > kMax)
    return Malformed("shape out of range");
  const uint64_t type = Word(bytes, 7);
  if (type >= std::size(kElementTypes)) {
    return Malformed(absl::StrCat("unknown element type ", type));
  }
  ActivationHeader header;
  header.type = kElementTypes[type];
  header.epoch = Word(bytes, 1);
  header.number = Word(bytes, 2);
  header.tokens = static_cast<uint32_t>(tokens);
  header.hidden_size = static_cast<uint32_t>(hidden_size);
  header.offset = Word(bytes, 5);
  header.bytes = Word(bytes, 6);
  if (static_cast<unsigned __int128>(tokens) * hidden_size * ElementBytes(header.type) >
      UINT64_MAX) {
    return Malformed("shape out of range");
  }
  const uint64_t total = header.total_bytes();
  if (header.offset >= total || header.offset % kActivationPieceBytes != 0 ||
      header.bytes != std::min(kActivationPieceBytes, total - header.offset)) {
    return Malformed(absl::StrCat(header.bytes, " bytes from ", header.offset, " on of [", tokens,
                                  ", ", hidden_size, "]"));
  }
  return header;
}

}  // namespace

std::vector<std::byte> EncodeActivationMessage(const ActivationMessage& message) {
  if (const auto* credit = std::get_if<ActivationCredit>(&message)) {
    return Encode({kCredit.tag, credit->epoch, credit->number});
  }
  if (const auto* sum = std::get_if<ActivationSum>(&message)) {
    return Encode({kSum.tag, sum->epoch, sum->number, sum->checksum});
  }
  const auto& header = std::get<ActivationHeader>(message);
  return Encode({kPiece.tag, header.epoch, header.number, header.tokens, header.hidden_size,
                 header.offset, header.bytes, static_cast<uint64_t>(header.type)});
}

absl::StatusOr<ActivationMessage> DecodeActivationMessage(std::span<const std::byte> bytes) {
  const size_t words = bytes.size() / sizeof(uint64_t);
  if (bytes.size() % sizeof(uint64_t) != 0 || words < kCredit.words || words > kPiece.words) {
    return Malformed(absl::StrCat(bytes.size(), " bytes"));
  }
  if (Checksum(bytes.first((words - 1) * sizeof(uint64_t))) != Word(bytes, words - 1)) {
    return Malformed("checksum of the header differs");
  }
  const uint64_t tag = Word(bytes, 0);
  const auto is = [&](const Kind& kind) { return tag == kind.tag && words == kind.words; };
  if (is(kPiece)) return DecodePiece(bytes);
  if (is(kCredit)) return ActivationCredit{Word(bytes, 1), Word(bytes, 2)};
  if (is(kSum)) return ActivationSum{Word(bytes, 1), Word(bytes, 2), Word(bytes, 3)};
  return Malformed(absl::StrCat("unknown version or type ", tag));
}

}  // namespace baton::prefill
