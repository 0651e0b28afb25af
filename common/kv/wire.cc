#include "common/kv/wire.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr uint8_t kVersion = 3;
enum class Kind : uint8_t { kData = 1, kCommit = 2, kHeartbeat = 3, kReceipt = 4 };
constexpr size_t kChecksumBytes = sizeof(uint64_t);

uint64_t ChecksumOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("KV message: ", what));
}

// Writes integers byte by byte, so that the layout is the same for every compiler and machine.
class Writer {
 public:
  explicit Writer(Kind kind) {
    Unsigned(kVersion);
    Unsigned(static_cast<uint8_t>(kind));
  }
  template <typename T>
  void Unsigned(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
  }
  void Signed(int32_t value) { Unsigned(static_cast<uint32_t>(value)); }
  void Float(float value) { Unsigned(std::bit_cast<uint32_t>(value)); }
  void Text(const std::string& text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  std::vector<std::byte> Finish() && {
    Unsigned(ChecksumOf(bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what Writer wrote. A read past the end gives zero and is remembered; callers check once, in
// End.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T Unsigned() {
    T value = 0;
    if (rest_.size() < sizeof(T)) {
      short_ = true;
      return value;
    }
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | (static_cast<T>(rest_[i]) << (8 * i)));
    }
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  int32_t Signed() { return static_cast<int32_t>(Unsigned<uint32_t>()); }
  float Float() { return std::bit_cast<float>(Unsigned<uint32_t>()); }
  std::string Text(size_t size) {
    if (rest_.size() < size) {
      short_ = true;
      return {};
    }
    std::string text(size, '\0');
    if (size > 0) std::memcpy(text.data(), rest_.data(), size);  // data() may be null if size is 0.
    rest_ = rest_.subspan(size);
    return text;
  }
  absl::Status End() const {
    if (short_) return Malformed("too short");
    if (!rest_.empty()) return Malformed(absl::StrCat(rest_.size(), " bytes too long"));
    return absl::OkStatus();
  }

 private:
  std::span<const std::byte> rest_;
  bool short_ = false;
};

// Checks the envelope, returns the kind and leaves the body to the reader.
absl::StatusOr<Kind> Open(std::span<const std::byte> bytes, Reader& body) {
  if (bytes.size() < kChecksumBytes) return Malformed("too short");
  const auto signed_part = bytes.first(bytes.size() - kChecksumBytes);
  if (Reader(bytes.last(kChecksumBytes)).Unsigned<uint64_t>() != ChecksumOf(signed_part)) {
    return Malformed("the header's checksum differs");
  }
  body = Reader(signed_part);
  if (const auto version = body.Unsigned<uint8_t>(); version != kVersion) {
    return Malformed(absl::StrCat("version ", version, ", this process speaks ", kVersion));
  }
  return static_cast<Kind>(body.Unsigned<uint8_t>());
}

absl::Status CheckLayers(LayerRange layers) {
  if (layers.begin >= 0 && layers.begin < layers.end) return absl::OkStatus();
  return Malformed(absl::StrCat("layers [", layers.begin, ", ", layers.end, ")"));
}

template <typename Message>
void PutIdentity(Writer& writer, const Message& message) {
  writer.Unsigned(message.slot);
  writer.Unsigned(message.generation);
  writer.Unsigned(message.decode_incarnation);
  writer.Unsigned(message.writer_incarnation);
  writer.Signed(message.layers.begin);
  writer.Signed(message.layers.end);
}

template <typename Message>
void GetIdentity(Reader& reader, Message& message) {
  message.slot = reader.Unsigned<uint32_t>();
  message.generation = reader.Unsigned<uint64_t>();
  message.decode_incarnation = reader.Unsigned<uint64_t>();
  message.writer_incarnation = reader.Unsigned<uint64_t>();
  message.layers.begin = reader.Signed();
  message.layers.end = reader.Signed();
}

absl::Status CheckToken(int32_t token, float logprob) {
  if (std::isnan(logprob)) return Malformed("a log-probability is not a number");
  return token < 0 ? Malformed("a token id is negative") : absl::OkStatus();
}

absl::StatusOr<SampledToken> GetToken(Reader& reader) {
  SampledToken token;
  token.token = reader.Signed();
  token.logprob = reader.Float();
  const int count = reader.Unsigned<uint8_t>();
  if (count > kMaxWireTopLogprobs) return Malformed(absl::StrCat(count, " top logprobs"));
  BATON_RETURN_IF_ERROR(CheckToken(token.token, token.logprob));
  token.top.resize(static_cast<size_t>(count));
  for (TokenLogprob& top : token.top) {
    top.token = reader.Signed();
    top.logprob = reader.Float();
    BATON_RETURN_IF_ERROR(CheckToken(top.token, top.logprob));
  }
  return token;
}

void PutId(Writer& writer, const std::string& id) {
  BATON_CHECK(!id.empty() && id.size() <= kMaxInstanceIdBytes) << "instance id '" << id << "'";
  writer.Unsigned(static_cast<uint8_t>(id.size()));
  writer.Text(id);
}

absl::Status CheckInstance(const std::string& id, uint64_t incarnation) {
  if (id.empty() || id.size() > kMaxInstanceIdBytes) {
    return Malformed(absl::StrCat("instance id of ", id.size(), " bytes"));
  }
  return incarnation == 0 ? Malformed("incarnation 0") : absl::OkStatus();
}

absl::StatusOr<KvControl> DecodeCommit(Reader& reader) {
  KvCommit commit;
  GetIdentity(reader, commit);
  commit.writer_id = reader.Text(reader.Unsigned<uint8_t>());
  commit.page_count = reader.Signed();
  commit.checksum_sum = reader.Unsigned<uint64_t>();
  const auto has_token = reader.Unsigned<uint8_t>();
  if (has_token > 1) return Malformed("first-token mark is neither 0 nor 1");
  commit.has_first_token = has_token == 1;
  if (commit.has_first_token) {
    BATON_ASSIGN_OR_RETURN(commit.first_token, GetToken(reader));
  }
  BATON_RETURN_IF_ERROR(reader.End());
  BATON_RETURN_IF_ERROR(CheckLayers(commit.layers));
  BATON_RETURN_IF_ERROR(CheckInstance(commit.writer_id, commit.writer_incarnation));
  if (commit.page_count < 1) return Malformed(absl::StrCat(commit.page_count, " pages"));
  return commit;
}

absl::StatusOr<KvControl> DecodeHeartbeat(Reader& reader) {
  KvHeartbeat heartbeat;
  heartbeat.sender.incarnation = reader.Unsigned<uint64_t>();
  heartbeat.sender.id = reader.Text(reader.Unsigned<uint8_t>());
  BATON_RETURN_IF_ERROR(reader.End());
  BATON_RETURN_IF_ERROR(CheckInstance(heartbeat.sender.id, heartbeat.sender.incarnation));
  return heartbeat;
}

absl::StatusOr<KvControl> DecodeReceipt(Reader& reader) {
  KvReceipt receipt;
  receipt.slot = reader.Unsigned<uint32_t>();
  receipt.generation = reader.Unsigned<uint64_t>();
  receipt.decode_incarnation = reader.Unsigned<uint64_t>();
  const auto kind = reader.Unsigned<uint8_t>();
  receipt.missing_parts = reader.Unsigned<uint32_t>();
  receipt.writer.incarnation = reader.Unsigned<uint64_t>();
  receipt.writer.id = reader.Text(reader.Unsigned<uint8_t>());
  BATON_RETURN_IF_ERROR(reader.End());
  BATON_RETURN_IF_ERROR(CheckInstance(receipt.writer.id, receipt.writer.incarnation));
  if (kind < static_cast<uint8_t>(KvReceiptKind::kComplete) ||
      kind > static_cast<uint8_t>(KvReceiptKind::kRefused)) {
    return Malformed(absl::StrCat("receipt of kind ", kind));
  }
  receipt.kind = static_cast<KvReceiptKind>(kind);
  return receipt;
}

}  // namespace

std::vector<std::byte> EncodeKvData(const KvDataHeader& header) {
  Writer writer(Kind::kData);
  PutIdentity(writer, header);
  writer.Signed(header.first_page);
  writer.Signed(header.page_count);
  writer.Signed(header.part);
  writer.Unsigned(header.bytes);
  writer.Unsigned(header.checksum);
  return std::move(writer).Finish();
}

std::vector<std::byte> EncodeKvCommit(const KvCommit& commit) {
  Writer writer(Kind::kCommit);
  PutIdentity(writer, commit);
  PutId(writer, commit.writer_id);
  writer.Signed(commit.page_count);
  writer.Unsigned(commit.checksum_sum);
  writer.Unsigned(static_cast<uint8_t>(commit.has_first_token));
  if (commit.has_first_token) {
    const SampledToken& token = commit.first_token;
    BATON_CHECK(token.top.size() <= kMaxWireTopLogprobs) << token.top.size() << " top logprobs";
    writer.Signed(token.token);
    writer.Float(token.logprob);
    writer.Unsigned(static_cast<uint8_t>(token.top.size()));
    for (const TokenLogprob& top : token.top) {
      writer.Signed(top.token);
      writer.Float(top.logprob);
    }
  }
  return std::move(writer).Finish();
}

std::vector<std::byte> EncodeKvHeartbeat(const KvHeartbeat& heartbeat) {
  Writer writer(Kind::kHeartbeat);
  writer.Unsigned(heartbeat.sender.incarnation);
  PutId(writer, heartbeat.sender.id);
  return std::move(writer).Finish();
}

std::vector<std::byte> EncodeKvReceipt(const KvReceipt& receipt) {
  Writer writer(Kind::kReceipt);
  writer.Unsigned(receipt.slot);
  writer.Unsigned(receipt.generation);
  writer.Unsigned(receipt.decode_incarnation);
  writer.Unsigned(static_cast<uint8_t>(receipt.kind));
  writer.Unsigned(receipt.missing_parts);
  writer.Unsigned(receipt.writer.incarnation);
  PutId(writer, receipt.writer.id);
  return std::move(writer).Finish();
}

absl::StatusOr<KvDataHeader> DecodeKvData(std::span<const std::byte> bytes) {
  Reader reader({});
  BATON_ASSIGN_OR_RETURN(const Kind kind, Open(bytes, reader));
  if (kind != Kind::kData) return Malformed("not a data header");
  KvDataHeader header;
  GetIdentity(reader, header);
  header.first_page = reader.Signed();
  header.page_count = reader.Signed();
  header.part = reader.Signed();
  header.bytes = reader.Unsigned<uint64_t>();
  header.checksum = reader.Unsigned<uint64_t>();
  BATON_RETURN_IF_ERROR(reader.End());
  BATON_RETURN_IF_ERROR(CheckLayers(header.layers));
  if (header.first_page < 0 || header.page_count < 1 || header.part < 0) {
    return Malformed(absl::StrCat(header.page_count, " pages from page ", header.first_page,
                                  " on, part ", header.part));
  }
  return header;
}

absl::StatusOr<KvControl> DecodeKvControl(std::span<const std::byte> bytes) {
  Reader reader({});
  BATON_ASSIGN_OR_RETURN(const Kind kind, Open(bytes, reader));
  switch (kind) {
    case Kind::kCommit:
      return DecodeCommit(reader);
    case Kind::kHeartbeat:
      return DecodeHeartbeat(reader);
    case Kind::kReceipt:
      return DecodeReceipt(reader);
    default:
      return Malformed(absl::StrCat("unknown control kind ", static_cast<int>(kind)));
  }
}

}  // namespace baton
