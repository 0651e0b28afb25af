#include "common/kv/wire.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/random.h"

namespace baton {
namespace {

KvDataHeader SampleHeader() {
  return {.slot = 3,
          .generation = 0x1122334455667788,
          .decode_incarnation = 5,
          .writer_incarnation = 6,
          .layers = {2, 5},
          .first_page = 7,
          .page_count = 9,
          .part = 2,
          .bytes = 123456789012,
          .checksum = 0xfedcba9876543210};
}

KvCommit SampleCommit(int top) {
  KvCommit commit{.slot = 3,
                  .generation = 8,
                  .decode_incarnation = 5,
                  .writer_incarnation = 6,
                  .layers = {2, 5},
                  .page_count = 9,
                  .checksum_sum = ~uint64_t{0}};
  commit.writer_id = "prefill-0";
  commit.has_first_token = true;
  commit.first_token = {.token = 17, .logprob = -1.5F};
  for (int i = 0; i < top; ++i) {
    commit.first_token.top.push_back({i, -static_cast<float>(i)});
  }
  return commit;
}

KvReceipt SampleReceipt() {
  return {.writer = {"prefill-0", 6},
          .slot = 3,
          .generation = 8,
          .decode_incarnation = 5,
          .kind = KvReceiptKind::kMissing,
          .missing_parts = 1u << 31};
}

// One of each kind of message.
std::vector<std::vector<std::byte>> Samples() {
  return {EncodeKvData(SampleHeader()), EncodeKvCommit(SampleCommit(3)),
          EncodeKvHeartbeat({{"prefill-0", 1}}), EncodeKvReceipt(SampleReceipt())};
}

template <typename T>
T DecodedControl(const std::vector<std::byte>& bytes) {
  auto control = DecodeKvControl(bytes);
  EXPECT_TRUE(control.ok()) << control.status();
  return control.ok() ? std::get<T>(*control) : T{};
}

TEST(KvWireTest, RoundTrips) {
  EXPECT_EQ(*DecodeKvData(EncodeKvData(SampleHeader())), SampleHeader());
  for (const int top : {0, 1, kMaxWireTopLogprobs}) {
    EXPECT_EQ(DecodedControl<KvCommit>(EncodeKvCommit(SampleCommit(top))), SampleCommit(top));
  }
  KvCommit middle_stage = SampleCommit(0);
  middle_stage.has_first_token = false;
  middle_stage.first_token = {};
  EXPECT_EQ(DecodedControl<KvCommit>(EncodeKvCommit(middle_stage)), middle_stage);
  const KvHeartbeat heartbeat{{std::string(kMaxInstanceIdBytes, 'x'), 42}};
  EXPECT_EQ(DecodedControl<KvHeartbeat>(EncodeKvHeartbeat(heartbeat)), heartbeat);
  for (const KvReceiptKind kind : {KvReceiptKind::kComplete, KvReceiptKind::kMissing,
                                   KvReceiptKind::kOver, KvReceiptKind::kRefused}) {
    KvReceipt receipt = SampleReceipt();
    receipt.kind = kind;
    EXPECT_EQ(DecodedControl<KvReceipt>(EncodeKvReceipt(receipt)), receipt);
  }
}

TEST(KvWireTest, EveryHeaderFitsTheDataPlane) {
  const std::string id(kMaxInstanceIdBytes, 'x');
  KvCommit commit = SampleCommit(kMaxWireTopLogprobs);
  commit.writer_id = id;
  EXPECT_LE(EncodeKvCommit(commit).size(), 512u);
  EXPECT_LE(EncodeKvHeartbeat({{id, 1}}).size(), 512u);
  EXPECT_LE(EncodeKvReceipt({.writer = {id, 1}}).size(), 512u);
}

TEST(KvWireTest, TheLayoutIsFixed) {
  const std::vector<std::byte> bytes = EncodeKvData(SampleHeader());
  EXPECT_EQ(bytes[0], std::byte{3}) << "version: a change of the layout is a change of this";
  EXPECT_EQ(bytes[1], std::byte{1}) << "kind";
  ASSERT_EQ(bytes.size(), 2u + 4 + 3 * 8 + 2 * 4 + 3 * 4 + 2 * 8 + 8);
  EXPECT_EQ(bytes[2], std::byte{3}) << "slot, little-endian";
  EXPECT_EQ(bytes[6], std::byte{0x88}) << "generation, little-endian";
}

TEST(KvWireTest, EveryTruncationAndExtensionIsRefused) {
  for (const auto& whole : Samples()) {
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(DecodeKvData(std::span(whole).first(size)).ok()) << size;
      EXPECT_FALSE(DecodeKvControl(std::span(whole).first(size)).ok()) << size;
    }
    auto longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(DecodeKvData(longer).ok());
    EXPECT_FALSE(DecodeKvControl(longer).ok());
  }
}

TEST(KvWireTest, EveryFlippedBitIsRefused) {
  for (const auto& whole : Samples()) {
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      auto flipped = whole;
      flipped[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(DecodeKvData(flipped).ok()) << bit;
      EXPECT_FALSE(DecodeKvControl(flipped).ok()) << bit;
    }
  }
}

TEST(KvWireTest, RandomBytesAreRefused) {
  Random random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random.Below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
    EXPECT_FALSE(DecodeKvData(bytes).ok());
    EXPECT_FALSE(DecodeKvControl(bytes).ok());
  }
}

// A peer can compute checksums too: messages with a right checksum and wrong contents must fail as
// well.
TEST(KvWireTest, SealedNonsenseIsRefused) {
  KvDataHeader header = SampleHeader();
  header.layers = {5, 5};
  EXPECT_FALSE(DecodeKvData(EncodeKvData(header)).ok());
  header.layers = {-1, 5};
  EXPECT_FALSE(DecodeKvData(EncodeKvData(header)).ok());
  header = SampleHeader();
  header.first_page = -1;
  EXPECT_FALSE(DecodeKvData(EncodeKvData(header)).ok());
  header = SampleHeader();
  header.page_count = 0;
  EXPECT_FALSE(DecodeKvData(EncodeKvData(header)).ok());
  header = SampleHeader();
  header.part = -1;
  EXPECT_FALSE(DecodeKvData(EncodeKvData(header)).ok());

  KvCommit commit = SampleCommit(1);
  commit.first_token.logprob = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  commit = SampleCommit(1);
  commit.first_token.top[0].logprob = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  commit = SampleCommit(1);
  commit.first_token.token = -1;
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  commit = SampleCommit(1);
  commit.page_count = 0;
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  commit = SampleCommit(1);
  commit.writer_incarnation = 0;
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  EXPECT_FALSE(DecodeKvControl(EncodeKvHeartbeat({{"prefill-0", 0}})).ok());
  for (const int kind : {0, 5}) {
    KvReceipt receipt = SampleReceipt();
    receipt.kind = static_cast<KvReceiptKind>(kind);
    EXPECT_FALSE(DecodeKvControl(EncodeKvReceipt(receipt)).ok()) << kind;
  }

  EXPECT_FALSE(DecodeKvControl(EncodeKvData(SampleHeader())).ok()) << "kinds don't mix";
  EXPECT_FALSE(DecodeKvData(EncodeKvCommit(SampleCommit(0))).ok()) << "kinds don't mix";
}

// Whichever of them is wrong.
TEST(KvWireTest, EveryLogProbabilityIsANumberOfAToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < 3; ++i) {
    KvCommit commit = SampleCommit(3);
    commit.first_token.top[i].logprob = nan;
    EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok()) << i;
    commit = SampleCommit(3);
    commit.first_token.top[i].token = -1;
    EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok()) << i;
  }
  KvCommit commit = SampleCommit(3);
  commit.first_token.logprob = nan;
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
  commit = SampleCommit(3);
  commit.first_token.token = -1;
  EXPECT_FALSE(DecodeKvControl(EncodeKvCommit(commit)).ok());
}

// A message's bytes without the checksum, with a right one instead.
std::vector<std::byte> Sealed(std::vector<std::byte> bytes) {
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  for (size_t i = 0; i < sizeof(checksum); ++i) {
    bytes.push_back(static_cast<std::byte>(checksum >> (8 * i)));
  }
  return bytes;
}
std::vector<std::byte> Body(std::vector<std::byte> message) {
  message.resize(message.size() - sizeof(uint64_t));
  return message;
}
bool Refused(const std::vector<std::byte>& body) {
  const std::vector<std::byte> message = Sealed(body);
  return !DecodeKvData(message).ok() && !DecodeKvControl(message).ok();
}

TEST(KvWireTest, SealedTruncationsAndExtensionsAreRefused) {
  for (const auto& whole : Samples()) {
    std::vector<std::byte> body = Body(whole);
    EXPECT_FALSE(Refused(body));
    for (size_t size = 0; size < body.size(); ++size) {
      EXPECT_TRUE(Refused({body.begin(), body.begin() + static_cast<long>(size)})) << size;
    }
    body.push_back(std::byte{0});
    EXPECT_TRUE(Refused(body));
  }
}

// A copy that ends where memory does: to read behind it ends the process.
class AtTheEndOfMemory {
 public:
  explicit AtTheEndOfMemory(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    void* const pages = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    EXPECT_NE(pages, MAP_FAILED);
    begin_ = static_cast<std::byte*>(pages);
    EXPECT_EQ(mprotect(begin_ + page_, page_, PROT_NONE), 0);
    std::copy(bytes.begin(), bytes.end(), begin_ + page_ - size_);
  }
  AtTheEndOfMemory(const AtTheEndOfMemory&) = delete;
  AtTheEndOfMemory& operator=(const AtTheEndOfMemory&) = delete;
  ~AtTheEndOfMemory() { munmap(begin_, 2 * page_); }
  std::span<const std::byte> bytes() const { return {begin_ + page_ - size_, size_}; }

 private:
  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size_;
  std::byte* begin_ = nullptr;
};

TEST(KvWireTest, NothingIsReadBehindAMessage) {
  for (const auto& whole : Samples()) {
    const std::vector<std::byte> body = Body(whole);
    for (size_t size = 0; size < body.size(); ++size) {
      const AtTheEndOfMemory unsealed({whole.begin(), whole.begin() + static_cast<long>(size)});
      EXPECT_FALSE(DecodeKvControl(unsealed.bytes()).ok());
      // The first eight bytes that are missing would be the checksum; then comes the end.
      std::vector<std::byte> cut(body.begin(), body.begin() + static_cast<long>(size));
      const AtTheEndOfMemory sealed(Sealed(std::move(cut)));
      EXPECT_FALSE(DecodeKvData(sealed.bytes()).ok());
      EXPECT_FALSE(DecodeKvControl(sealed.bytes()).ok());
    }
  }
}

TEST(KvWireTest, OtherVersionsAndKindsAreRefused) {
  for (const auto& whole : Samples()) {
    std::vector<std::byte> body = Body(whole);
    for (const int version : {0, 2, 4}) {
      body[0] = std::byte(version);
      EXPECT_TRUE(Refused(body)) << version;
    }
    body[0] = std::byte{3};
    for (const int kind : {0, 5, 255}) {
      body[1] = std::byte(kind);
      EXPECT_TRUE(Refused(body)) << kind;
    }
  }
}

TEST(KvWireTest, TheSmallestOfEachFieldIsTaken) {
  KvDataHeader header = SampleHeader();
  header.layers = {0, 1};
  header.first_page = 0;
  header.page_count = 1;
  header.part = 0;
  EXPECT_EQ(*DecodeKvData(EncodeKvData(header)), header);
  KvCommit commit = SampleCommit(1);
  commit.layers = {0, 1};
  commit.page_count = 1;
  commit.first_token.token = 0;
  EXPECT_EQ(DecodedControl<KvCommit>(EncodeKvCommit(commit)), commit);
}

TEST(KvWireTest, SealedCommitsOfWrongFieldsAreRefused) {
  const std::vector<std::byte> body = Body(EncodeKvCommit(SampleCommit(1)));
  constexpr size_t kIdAt = 2 + 4 + 3 * 8 + 2 * 4;
  constexpr size_t kMarkAt = kIdAt + 1 + 9 + 4 + 8;  // The id is of 9 bytes.
  ASSERT_EQ(body[kIdAt], std::byte{9});
  ASSERT_EQ(body[kMarkAt], std::byte{1});
  std::vector<std::byte> wrong = body;
  wrong[kMarkAt] = std::byte{2};
  EXPECT_TRUE(Refused(wrong)) << "a mark that is neither";
  wrong.resize(kMarkAt + 1);
  EXPECT_TRUE(Refused(wrong)) << "nor without a token";
  wrong[kMarkAt] = std::byte{0};
  EXPECT_FALSE(Refused(wrong));
  wrong = body;
  wrong[kMarkAt + 9] = std::byte{kMaxWireTopLogprobs + 1};
  wrong.resize(kMarkAt + 10 + 8 * size_t{kMaxWireTopLogprobs + 1});
  EXPECT_TRUE(Refused(wrong)) << "too many log-probabilities";
  wrong = body;
  wrong[kIdAt] = std::byte{0};
  wrong.erase(wrong.begin() + kIdAt + 1, wrong.begin() + kIdAt + 10);
  EXPECT_TRUE(Refused(wrong)) << "no id";
  KvCommit commit = SampleCommit(1);
  commit.first_token.top[0].token = -1;
  EXPECT_TRUE(Refused(Body(EncodeKvCommit(commit))));
  commit = SampleCommit(1);
  commit.layers = {5, 5};
  EXPECT_TRUE(Refused(Body(EncodeKvCommit(commit))));
}

TEST(KvWireTest, IdsHaveTheirBounds) {
  std::vector<std::byte> body =
      Body(EncodeKvHeartbeat({{std::string(kMaxInstanceIdBytes, 'x'), 1}}));
  constexpr size_t kIdAt = 2 + 8;
  ASSERT_EQ(body[kIdAt], std::byte{kMaxInstanceIdBytes});
  EXPECT_FALSE(Refused(body));
  body[kIdAt] = std::byte{kMaxInstanceIdBytes + 1};
  body.push_back(std::byte{'x'});
  EXPECT_TRUE(Refused(body));
  body.resize(kIdAt + 1);
  body[kIdAt] = std::byte{0};
  EXPECT_TRUE(Refused(body)) << "no id";
}

}  // namespace
}  // namespace baton
