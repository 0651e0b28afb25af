// Exports and landings with a CPU's memory in place of a device's: the results of HostKvMemory, by
// copies.
#include "common/engine/torch/device_kv_memory.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <memory>
#include <vector>

#include "common/base/sync.h"

namespace baton {
namespace {

// Two layers, two heads, four tokens of two floats: 256 bytes a page.
constexpr KvGeometry kGeometry{.layer_begin = 3,
                               .layer_end = 5,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .page_size = 4,
                               .page_count = 3};

// Awaits what the copy thread reports.
template <typename Value>
class Told {
 public:
  std::function<void(absl::StatusOr<Value>)> Callback() {
    return [this](absl::StatusOr<Value> value) {
      MutexLock lock(&mutex_);
      values_.push_back(std::move(value));
    };
  }
  absl::StatusOr<Value> Await() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return values_.size() > taken_; });
    return values_[taken_++];
  }

 private:
  Mutex mutex_;
  std::vector<absl::StatusOr<Value>> values_ ABSL_GUARDED_BY(mutex_);
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

class DeviceKvMemoryTest : public testing::Test {
 protected:
  explicit DeviceKvMemoryTest(const KvGeometry& geometry = kGeometry) {
    const c10::InferenceMode inference;
    pages_ = at::zeros({geometry.page_count, geometry.layers(), 2, geometry.kv_heads,
                        geometry.page_size, geometry.head_dim},
                       at::kFloat);
    for (size_t i = 0; i < pages_.nbytes(); ++i) Bytes()[i] = static_cast<std::byte>(i % 251 + 1);
    memory_ = DeviceKvMemory::Create(geometry, *TorchDevice::Open("cpu"), pages_).value();
  }

  std::byte* Bytes() { return static_cast<std::byte*>(pages_.data_ptr()); }

  absl::StatusOr<ExportedKv> Export(const std::vector<KvPiece>& pieces) {
    memory_->Export(pieces, exported_.Callback());
    return exported_.Await();
  }
  absl::StatusOr<uint64_t> Land(const std::vector<KvPiece>& pieces) {
    memory_->FinishLanding(pieces, landed_.Callback());
    return landed_.Await();
  }

  at::Tensor pages_;
  Told<ExportedKv> exported_;
  Told<uint64_t> landed_;
  std::unique_ptr<DeviceKvMemory> memory_;  // Last: its thread tells the others.
};

TEST_F(DeviceKvMemoryTest, AnExportIsACopyThatStaysUntilItIsEnded) {
  const KvPiece piece{1, 200, 100};  // Over the edge of page 1.
  const auto exported = Export({piece});
  ASSERT_TRUE(exported.ok()) << exported.status();
  const std::vector<std::byte> expected(Bytes() + 456, Bytes() + 556);
  EXPECT_NE(exported->memory.data, Bytes() + 456);
  std::memset(Bytes(), 0, pages_.nbytes());
  ASSERT_EQ(exported->memory.bytes, 100u);
  EXPECT_EQ(std::memcmp(exported->memory.data, expected.data(), 100), 0);
  EXPECT_EQ(exported->checksum, XXH3_64bits(expected.data(), 100));
  memory_->EndExport(exported->export_id);
}

TEST_F(DeviceKvMemoryTest, PiecesAreExportedBehindEachOther) {
  std::vector<std::byte> together(Bytes() + 512, Bytes() + 612);
  together.insert(together.end(), Bytes() + 10, Bytes() + 30);
  together.insert(together.end(), Bytes() + 250, Bytes() + 260);  // Over an edge.
  const auto exported = Export({{2, 0, 100}, {0, 10, 20}, {0, 250, 10}});
  ASSERT_TRUE(exported.ok()) << exported.status();
  ASSERT_EQ(exported->memory.bytes, together.size());
  EXPECT_EQ(std::memcmp(exported->memory.data, together.data(), together.size()), 0);
  EXPECT_EQ(exported->checksum, XXH3_64bits(together.data(), together.size()));
  memory_->EndExport(exported->export_id);
}

TEST_F(DeviceKvMemoryTest, WhatHasLandedIsPartOfItsPageWhenTheLandingIsFinished) {
  const std::vector<KvPiece> pieces = {{2, 0, 100}, {0, 10, 20}};
  std::vector<std::byte> together;
  for (const KvPiece& piece : pieces) {
    const MemorySpan place = memory_->Landing(piece);
    ASSERT_EQ(place.bytes, piece.bytes);
    EXPECT_EQ(place.data, memory_->Landing(piece).data) << "a page's place is its own";
    for (size_t i = 0; i < place.bytes; ++i) {
      together.push_back(static_cast<std::byte>(i + 7));
      place.data[i] = together.back();
    }
  }
  EXPECT_EQ(Bytes()[512], static_cast<std::byte>(512 % 251 + 1)) << "not yet";
  EXPECT_EQ(Land(pieces).value(), XXH3_64bits(together.data(), together.size()));
  EXPECT_EQ(std::memcmp(Bytes() + 512, together.data(), 100), 0);
  EXPECT_EQ(std::memcmp(Bytes() + 10, together.data() + 100, 20), 0);
  EXPECT_EQ(Bytes()[30], std::byte{31}) << "behind it";
}

TEST_F(DeviceKvMemoryTest, ATailIsClearedBeforeTheExportsThatFollow) {
  const std::vector<std::byte> before(Bytes(), Bytes() + pages_.nbytes());
  memory_->ClearTail(1, 3);
  const auto exported = Export({{0, 0, 768}});
  ASSERT_TRUE(exported.ok()) << exported.status();
  for (size_t i = 0; i < before.size(); ++i) {
    const bool in_page = i / 256 == 1;
    const bool behind = i % 32 >= 24;  // A head is 32 bytes, a token 8.
    EXPECT_EQ(exported->memory.data[i], in_page && behind ? std::byte{0} : before[i]) << i;
  }
  memory_->EndExport(exported->export_id);
}

TEST_F(DeviceKvMemoryTest, WhatIsUnderWayIsEndedBeforeItGoes) {
  memory_->Export({{0, 0, 256}}, exported_.Callback());
  memory_->FinishLanding({{1, 0, 256}}, landed_.Callback());
  memory_.reset();
  EXPECT_TRUE(exported_.Await().ok());
  EXPECT_TRUE(landed_.Await().ok());
}

// Pages of 16 MiB, four of which are what exports may hold.
class LargePagesTest : public DeviceKvMemoryTest {
 protected:
  static KvGeometry Large() {
    KvGeometry large = kGeometry;
    large.head_dim = 1 << 17;
    large.page_count = 6;
    return large;
  }
  LargePagesTest() : DeviceKvMemoryTest(Large()) {}
};

TEST_F(LargePagesTest, ExportsBeyondTheRoomAreRefusedUntilOneIsEnded) {
  const size_t page = Large().PageBytes();
  ASSERT_EQ(kExportStagingBytes, 4 * page);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(Export({{i, 0, page}})->export_id);
  const absl::Status refused = Export({{4, 0, 1}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "exports hold 67108864 of 67108864 bytes, and 1 more are asked for");
  memory_->EndExport(ids[2]);
  const auto again = Export({{4, 0, page}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(std::memcmp(again->memory.data, Bytes() + 4 * page, page), 0);
  for (const uint64_t id : {ids[0], ids[1], ids[3], again->export_id}) memory_->EndExport(id);
  // More than there is room for, but alone.
  const auto whole = Export({{0, 0, 6 * page}});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->checksum, XXH3_64bits(Bytes(), 6 * page));
  memory_->EndExport(whole->export_id);
}

TEST_F(LargePagesTest, ALandingIsCopiedInParts) {
  const size_t page = Large().PageBytes();
  const MemorySpan place = memory_->Landing({1, 100, page});
  for (size_t i = 0; i < page; ++i) place.data[i] = static_cast<std::byte>(i * 7 >> 3);
  EXPECT_EQ(Land({{1, 100, page}}).value(), XXH3_64bits(place.data, page));
  EXPECT_EQ(std::memcmp(Bytes() + page + 100, place.data, page), 0);
}

TEST(TorchDeviceTest, ADeviceThatIsNotThereIsRefusedWithBothSides) {
  const absl::Status refused = TorchDevice::Open("cuda:64").status();
  EXPECT_NE(refused.message().find("asked for device cuda:64; libtorch "), absl::string_view::npos)
      << refused;
  EXPECT_EQ(refused.code(), LibtorchHasCuda() ? absl::StatusCode::kFailedPrecondition
                                              : absl::StatusCode::kUnimplemented);
  EXPECT_EQ(TorchDevice::Open("meta").status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace baton
