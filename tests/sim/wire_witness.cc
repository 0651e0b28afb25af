#include "tests/sim/wire_witness.h"

#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

namespace baton::sim {
namespace {

constexpr uint64_t kVersion = 3;
constexpr uint64_t kData = 1;
constexpr uint64_t kCommit = 2;
constexpr uint64_t kHeartbeat = 3;
constexpr uint64_t kReceipt = 4;
constexpr size_t kLongestId = 128;
constexpr size_t kMostTop = 20;

using Bytes = std::vector<std::byte>;

struct Number {
  uint64_t value = 0;
  int bytes = 0;
};

void Put(Bytes& bytes, std::initializer_list<Number> numbers) {
  for (Number number : numbers) {
    for (; number.bytes > 0; --number.bytes, number.value >>= 8) {
      bytes.push_back(static_cast<std::byte>(number.value & 0xff));
    }
  }
}

Number Of(int32_t value) { return {static_cast<uint32_t>(value), 4}; }
Number Of(float value) { return {std::bit_cast<uint32_t>(value), 4}; }

void PutId(Bytes& bytes, const std::string& id) {
  Put(bytes, {{id.size(), 1}});
  for (const char letter : id) bytes.push_back(static_cast<std::byte>(letter));
}

template <typename Message>
Bytes Begin(uint64_t kind, const Message& message) {
  Bytes bytes;
  Put(bytes, {{kVersion, 1},
              {kind, 1},
              {message.slot, 4},
              {message.generation, 8},
              {message.decode_incarnation, 8}});
  return bytes;
}

Bytes Sealed(Bytes bytes) {
  Put(bytes, {{XXH3_64bits(bytes.data(), bytes.size()), 8}});
  return bytes;
}

// A right message's bytes, changed in a way that any kind of message can be wrong.
Bytes SpoiledEnvelope(Random& random, Bytes bytes) {
  bytes.resize(bytes.size() - 8);
  switch (random.Below(7)) {
    case 0:
      bytes[0] = std::byte{kVersion - 1};
      break;
    case 1:
      bytes[0] = std::byte{kVersion + 1};
      break;
    case 2:
      bytes[1] = std::byte{0};
      break;
    case 3:
      bytes[1] = std::byte{kReceipt + 1};
      break;
    case 4:
      bytes.push_back(std::byte{0});
      break;
    case 5:
      bytes.resize(random.Below(bytes.size()));
      break;
    default:
      bytes.pop_back();
  }
  return Sealed(std::move(bytes));
}

std::string EdgeId(Random& random) { return std::string(random.Chance(0.5) ? 1 : kLongestId, 'x'); }
std::string BadId(Random& random) {
  return std::string(random.Chance(0.5) ? 0 : kLongestId + 1, 'x');
}
void SpoilName(Random& random, uint64_t which, InstanceRef& instance) {
  if (which == 0) {
    instance.incarnation = 0;
  } else {
    instance.id = BadId(random);
  }
}
uint64_t EdgeNumber(Random& random) {
  return random.Chance(0.5) ? 1 : std::numeric_limits<uint64_t>::max();
}

}  // namespace

Bytes ImageOf(const KvDataHeader& header) {
  Bytes bytes = Begin(kData, header);
  Put(bytes, {{header.writer_incarnation, 8},
              Of(header.layers.begin),
              Of(header.layers.end),
              Of(header.first_page),
              Of(header.page_count),
              Of(header.part),
              {header.bytes, 8},
              {header.checksum, 8}});
  return Sealed(std::move(bytes));
}

Bytes ImageOf(const KvCommit& commit) {
  Bytes bytes = Begin(kCommit, commit);
  Put(bytes, {{commit.writer_incarnation, 8}, Of(commit.layers.begin), Of(commit.layers.end)});
  PutId(bytes, commit.writer_id);
  Put(bytes, {Of(commit.page_count), {commit.checksum_sum, 8}});
  Put(bytes, {{commit.has_first_token ? 1U : 0U, 1}});
  if (commit.has_first_token) {
    const SampledToken& token = commit.first_token;
    Put(bytes, {Of(token.token), Of(token.logprob), {token.top.size(), 1}});
    for (const TokenLogprob& top : token.top) Put(bytes, {Of(top.token), Of(top.logprob)});
  }
  return Sealed(std::move(bytes));
}

Bytes ImageOf(const KvHeartbeat& heartbeat) {
  Bytes bytes;
  Put(bytes, {{kVersion, 1}, {kHeartbeat, 1}, {heartbeat.sender.incarnation, 8}});
  PutId(bytes, heartbeat.sender.id);
  return Sealed(std::move(bytes));
}

Bytes ImageOf(const KvReceipt& receipt) {
  Bytes bytes = Begin(kReceipt, receipt);
  Put(bytes, {{static_cast<uint64_t>(receipt.kind), 1},
              {receipt.missing_parts, 4},
              {receipt.writer.incarnation, 8}});
  PutId(bytes, receipt.writer.id);
  return Sealed(std::move(bytes));
}

KvDataHeader AtTheEdge(Random& random, KvDataHeader header) {
  header.layers = {0, 1};
  header.first_page = random.Chance(0.5) ? 0 : std::numeric_limits<int>::max();
  header.page_count = 1;
  header.part = 0;
  header.generation = EdgeNumber(random);
  header.bytes = EdgeNumber(random);
  return header;
}

KvCommit AtTheEdge(Random& random, KvCommit commit) {
  commit.layers = {0, 1};
  commit.page_count = 1;
  commit.writer_id = EdgeId(random);
  commit.writer_incarnation = EdgeNumber(random);
  commit.checksum_sum = EdgeNumber(random);
  commit.has_first_token = random.Chance(0.8);
  commit.first_token = {};
  if (!commit.has_first_token) return commit;
  commit.first_token.token = random.Chance(0.5) ? 0 : std::numeric_limits<int32_t>::max();
  commit.first_token.top.resize(random.Chance(0.5) ? 0 : kMostTop, {0, -2.5F});
  return commit;
}

KvHeartbeat AtTheEdge(Random& random, KvHeartbeat heartbeat) {
  heartbeat.sender = {EdgeId(random), EdgeNumber(random)};
  return heartbeat;
}

KvReceipt AtTheEdge(Random& random, KvReceipt receipt) {
  receipt.writer = {EdgeId(random), EdgeNumber(random)};
  receipt.kind = static_cast<KvReceiptKind>(1 + random.Below(4));
  receipt.missing_parts = std::numeric_limits<uint32_t>::max();
  return receipt;
}

Bytes Spoiled(Random& random, const KvDataHeader& header) {
  KvDataHeader wrong = header;
  switch (random.Below(8)) {
    case 0:
      wrong.layers.begin = -1;
      break;
    case 1:
      wrong.layers.end = wrong.layers.begin;
      break;
    case 2:
      wrong.first_page = -1;
      break;
    case 3:
      wrong.page_count = 0;
      break;
    case 4:
      wrong.part = -1;
      break;
    default:
      return SpoiledEnvelope(random, ImageOf(header));
  }
  return ImageOf(wrong);
}

Bytes Spoiled(Random& random, const KvCommit& commit) {
  KvCommit wrong = commit;
  SampledToken& token = wrong.first_token;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const uint64_t which = random.Below(14);
  if (which >= 6 && which <= 10) {
    wrong.has_first_token = true;
    token.top.resize(3, {1, -1.0F});
  }
  const size_t top = random.Below(3);
  switch (which) {
    case 0:
      wrong.layers.begin = -1;
      break;
    case 1:
      wrong.layers.end = wrong.layers.begin;
      break;
    case 2:
      wrong.page_count = 0;
      break;
    case 3:
      wrong.writer_incarnation = 0;
      break;
    case 4:
      wrong.writer_id = BadId(random);
      break;
    case 6:
      token.token = -1;
      break;
    case 7:
      token.logprob = nan;
      break;
    case 8:
      token.top[top].token = -1;
      break;
    case 9:
      token.top[top].logprob = nan;
      break;
    case 10:
      token.top.resize(kMostTop + 1, {1, -1.0F});
      break;
    case 5: {  // A mark that says neither.
      wrong.has_first_token = false;
      Bytes bytes = ImageOf(wrong);
      bytes.resize(bytes.size() - 8);
      bytes.back() = std::byte{2};
      return Sealed(std::move(bytes));
    }
    default:
      return SpoiledEnvelope(random, ImageOf(commit));
  }
  return ImageOf(wrong);
}

Bytes Spoiled(Random& random, const KvHeartbeat& heartbeat) {
  KvHeartbeat wrong = heartbeat;
  const uint64_t which = random.Below(4);
  if (which > 1) return SpoiledEnvelope(random, ImageOf(heartbeat));
  SpoilName(random, which, wrong.sender);
  return ImageOf(wrong);
}

Bytes Spoiled(Random& random, const KvReceipt& receipt) {
  KvReceipt wrong = receipt;
  const uint64_t which = random.Below(6);
  if (which > 3) return SpoiledEnvelope(random, ImageOf(receipt));
  if (which < 2) {
    SpoilName(random, which, wrong.writer);
  } else {
    wrong.kind = static_cast<KvReceiptKind>(which == 2 ? 0 : 5);
  }
  return ImageOf(wrong);
}

}  // namespace baton::sim
