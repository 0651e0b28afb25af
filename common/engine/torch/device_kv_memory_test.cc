// Exports and landings with a CPU's memory in place of a device's: the results of HostKvMemory, by
// copies.
#include "common/engine/torch/device_kv_memory.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
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
  explicit DeviceKvMemoryTest(const KvGeometry& geometry = kGeometry,
                              Landings landings = Landings::kGivenBack) {
    const c10::InferenceMode inference;
    pages_ = at::zeros({geometry.page_count, geometry.layers(), 2, geometry.kv_heads,
                        geometry.page_size, geometry.head_dim},
                       at::kFloat);
    for (size_t i = 0; i < pages_.nbytes(); ++i) Bytes()[i] = static_cast<std::byte>(i % 251 + 1);
    memory_ = DeviceKvMemory::Create(geometry, *TorchDevice::Open("cpu"), pages_, landings).value();
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
  // Writes bytes that follow from `seed` where the piece lands, and returns them.
  std::vector<std::byte> Arrive(const KvPiece& piece, size_t seed) {
    const MemorySpan place = memory_->Landing(piece);
    std::vector<std::byte> bytes(place.bytes);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>((i + seed) * 7 >> 3);
    std::memcpy(place.data, bytes.data(), bytes.size());
    return bytes;
  }
  void ExpectOnDevice(size_t begin, const std::vector<std::byte>& bytes) {
    EXPECT_EQ(std::memcmp(Bytes() + begin, bytes.data(), bytes.size()), 0);
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
  explicit LargePagesTest(Landings landings = Landings::kGivenBack)
      : DeviceKvMemoryTest(Large(), landings) {}

  // OS pages of the piece's landing memory that the kernel provides; it begins with one.
  int64_t ResidentPages(const KvPiece& piece) {
    const MemorySpan place = memory_->Landing(piece);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> states((place.bytes + page - 1) / page);
    EXPECT_EQ(mincore(place.data, place.bytes, states.data()), 0);
    return std::ranges::count_if(states, [](unsigned char state) { return (state & 1) != 0; });
  }
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
  const std::vector<std::byte> arrived = Arrive({1, 100, page}, 0);
  EXPECT_EQ(Land({{1, 100, page}}).value(), XXH3_64bits(arrived.data(), page));
  ExpectOnDevice(page + 100, arrived);
}

TEST_F(LargePagesTest, PiecesOfAnySizesAreCopiedTogether) {
  const size_t page = Large().PageBytes();
  const std::vector<KvPiece> pieces = {
      {4, 5, (size_t{3} << 20) + 7}, {1, 1, 10}, {2, 0, page}, {0, 9, (size_t{5} << 20) - 1}};
  std::vector<std::byte> together;
  std::vector<std::vector<std::byte>> arrived;
  for (const KvPiece& piece : pieces) {
    arrived.push_back(Arrive(piece, arrived.size() * 1000));
    together.insert(together.end(), arrived.back().begin(), arrived.back().end());
  }
  EXPECT_EQ(Land(pieces).value(), XXH3_64bits(together.data(), together.size()));
  for (size_t i = 0; i < pieces.size(); ++i) {
    ExpectOnDevice(static_cast<size_t>(pieces[i].page) * page + pieces[i].offset_bytes, arrived[i]);
  }
}

TEST_F(LargePagesTest, WhatHasLandedGoesBackToTheKernelAndItsPlaceIsUsedAgain) {
  const size_t page = Large().PageBytes();
  const KvPiece whole{2, 0, page};
  for (const size_t seed : {1, 500}) {
    EXPECT_EQ(ResidentPages(whole), 0);
    const std::vector<std::byte> arrived = Arrive(whole, seed);
    EXPECT_GT(ResidentPages(whole), 0);
    EXPECT_EQ(Land({whole}).value(), XXH3_64bits(arrived.data(), page));
    EXPECT_EQ(ResidentPages(whole), 0);
    ExpectOnDevice(2 * page, arrived);
  }
}

TEST_F(LargePagesTest, NeighboursInAnOsPageStayUntilTheyAreCopied) {
  const size_t page = Large().PageBytes();
  constexpr size_t kBytes = 100'000;
  const KvPiece before{3, 0, kBytes}, piece{3, kBytes, kBytes}, behind{3, 2 * kBytes, kBytes};
  const std::vector<std::byte> first = Arrive(before, 1);
  const std::vector<std::byte> middle = Arrive(piece, 2);
  const std::vector<std::byte> last = Arrive(behind, 3);
  EXPECT_EQ(Land({piece}).value(), XXH3_64bits(middle.data(), kBytes));
  EXPECT_EQ(Land({before}).value(), XXH3_64bits(first.data(), kBytes));
  EXPECT_EQ(Land({behind}).value(), XXH3_64bits(last.data(), kBytes));
  ExpectOnDevice(3 * page, first);
  ExpectOnDevice(3 * page + kBytes, middle);
  ExpectOnDevice(3 * page + 2 * kBytes, last);
}

class KeptLandingsTest : public LargePagesTest {
 protected:
  KeptLandingsTest() : LargePagesTest(Landings::kKept) {}
};

TEST_F(KeptLandingsTest, WhatHasLandedKeepsItsMemory) {
  const KvPiece whole{2, 0, Large().PageBytes()};
  const std::vector<std::byte> arrived = Arrive(whole, 1);
  const int64_t resident = ResidentPages(whole);
  EXPECT_GT(resident, 0);
  EXPECT_EQ(Land({whole}).value(), XXH3_64bits(arrived.data(), arrived.size()));
  EXPECT_EQ(ResidentPages(whole), resident);
}

TEST_F(LargePagesTest, ExportsAreCountedInPowersOfTwo) {
  constexpr size_t kMib = size_t{1} << 20;
  const auto first = Export({{0, 0, 9 * kMib}});                     // 16 MiB.
  const auto second = Export({{1, 0, 9 * kMib}, {3, 0, 8 * kMib}});  // 32 MiB.
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->memory.bytes, 9 * kMib);
  EXPECT_EQ(Export({{4, 0, kMib * 16 + 1}}).status().code(), absl::StatusCode::kResourceExhausted);
  memory_->EndExport(first->export_id);
  const auto third = Export({{4, 0, kMib * 16 + 1}});
  ASSERT_TRUE(third.ok()) << third.status();
  memory_->EndExport(second->export_id);
  memory_->EndExport(third->export_id);
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
