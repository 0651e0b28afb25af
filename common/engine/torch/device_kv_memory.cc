#include "common/engine/torch/device_kv_memory.h"

#include <c10/core/InferenceMode.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr size_t kBounceBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceKvMemory>> DeviceKvMemory::Create(const KvGeometry& geometry,
                                                                       const TorchDevice& device,
                                                                       const at::Tensor& pages,
                                                                       Landings landings) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<KvPool> landing, KvPool::Create(geometry));
  std::unique_ptr<DeviceKvMemory> memory(
      new DeviceKvMemory(geometry, device, pages, std::move(landing), landings));
  memory->copies_.Start();
  return memory;
}

DeviceKvMemory::DeviceKvMemory(const KvGeometry& geometry, const TorchDevice& device,
                               const at::Tensor& pages, std::unique_ptr<KvPool> landing,
                               Landings landings)
    : geometry_(geometry),
      device_(device),
      pages_(pages.view({-1}).view(at::kByte)),
      landing_(std::move(landing)),
      landings_(landings),
      bounces_({device.AllocateStaging(kBounceBytes), device.AllocateStaging(kBounceBytes)}),
      copies_(QueueThreadName(Queue::kCopy)) {
  BATON_CHECK(pages_.nbytes() == landing_->Bytes().size())
      << pages_.nbytes() << " bytes for " << geometry.page_count << " pages";
}

at::Tensor DeviceKvMemory::OnDevice(size_t begin, size_t bytes) const {
  return pages_.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(bytes));
}

void DeviceKvMemory::ClearTail(int page, int valid_tokens) {
  const size_t begin = BeginOf(geometry_, {page, 0, geometry_.PageBytes()});
  const bool taken = copies_.PostCompletion([this, begin, valid_tokens] {
    cleared_.Update(GuardTorch([&] {
      const c10::InferenceMode inference;
      const TorchDevice::Entered entered = device_.Enter(Queue::kCopy);
      const int64_t size = geometry_.page_size;
      OnDevice(begin, geometry_.PageBytes())
          .view({-1, size, static_cast<int64_t>(geometry_.HeadBytes()) / size})
          .narrow(1, valid_tokens, size - valid_tokens)
          .zero_();
      return absl::OkStatus();
    }));
  });
  BATON_CHECK(taken) << "pages are cleared of an executor that has ended";
}

absl::StatusOr<uint64_t> DeviceKvMemory::TakeRoom(size_t bytes) {
  bytes = std::bit_ceil(bytes);
  MutexLock lock(&mutex_);
  if (staged_bytes_ > 0 && staged_bytes_ + bytes > kExportStagingBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("exports hold ", staged_bytes_, " of ",
                                                     kExportStagingBytes, " bytes, and ", bytes,
                                                     " more are asked for"));
  }
  staged_bytes_ += bytes;
  exports_[next_export_].bytes = bytes;
  return next_export_++;
}

void DeviceKvMemory::Export(const std::vector<KvPiece>& pieces, Exported done) {
  BATON_CHECK(!pieces.empty()) << "an export of nothing";
  size_t bytes = 0;
  for (const KvPiece& piece : pieces) {
    BeginOf(geometry_, piece);
    bytes += piece.bytes;
  }
  const absl::StatusOr<uint64_t> export_id = TakeRoom(bytes);
  if (!export_id.ok()) return done(export_id.status());
  const bool taken = copies_.PostCompletion([this, pieces, bytes, id = *export_id, done] {
    absl::StatusOr<ExportedKv> exported = GuardTorch([&] { return CopyOut(pieces, bytes, id); });
    if (!exported.ok()) EndExport(id);
    done(std::move(exported));
  });
  BATON_CHECK(taken) << "an export of an executor that has ended";
}

absl::StatusOr<ExportedKv> DeviceKvMemory::CopyOut(const std::vector<KvPiece>& pieces, size_t bytes,
                                                   uint64_t export_id) {
  BATON_RETURN_IF_ERROR(cleared_);
  const c10::InferenceMode inference;
  const TorchDevice::Entered entered = device_.Enter(Queue::kCopy);
  const at::Tensor staged = device_.AllocateStaging(bytes);
  int64_t filled = 0;
  for (const KvPiece& piece : pieces) {
    const auto size = static_cast<int64_t>(piece.bytes);
    staged.narrow(0, filled, size)
        .copy_(OnDevice(BeginOf(geometry_, piece), piece.bytes), /*non_blocking=*/true);
    filled += size;
  }
  device_.Finish(Queue::kCopy);
  const MemorySpan span = device_.StagingSpan(staged);
  {
    MutexLock lock(&mutex_);
    exports_.at(export_id).memory = staged;
  }
  return ExportedKv{export_id, span, XXH3_64bits(span.data, span.bytes)};
}

void DeviceKvMemory::EndExport(uint64_t export_id) {
  Staged ended;  // Freed without the lock.
  MutexLock lock(&mutex_);
  const auto found = exports_.find(export_id);
  BATON_CHECK(found != exports_.end()) << "export " << export_id << " is not there";
  ended = std::move(found->second);
  staged_bytes_ -= ended.bytes;
  exports_.erase(found);
}

MemorySpan DeviceKvMemory::Landing(const KvPiece& piece) {
  return HostSpan(landing_->Bytes().subspan(BeginOf(geometry_, piece), piece.bytes));
}

void DeviceKvMemory::FinishLanding(const std::vector<KvPiece>& pieces, Landed done) {
  const bool taken = copies_.PostCompletion(
      [this, pieces, done] { done(GuardTorch([&] { return CopyIn(pieces); })); });
  BATON_CHECK(taken) << "a landing of an executor that has ended";
}

absl::StatusOr<uint64_t> DeviceKvMemory::CopyIn(const std::vector<KvPiece>& pieces) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr) return absl::ResourceExhaustedError("no memory for a checksum");
  XXH3_64bits_reset(state.get());
  const c10::InferenceMode inference;
  const TorchDevice::Entered entered = device_.Enter(Queue::kCopy);
  size_t current = 0;
  size_t filled = 0;
  std::vector<Bounced> parts;
  parts.reserve(pieces.size());
  for (const KvPiece& piece : pieces) {
    const size_t begin = BeginOf(geometry_, piece);
    for (size_t done = 0; done < piece.bytes;) {
      const size_t bytes = std::min(kBounceBytes - filled, piece.bytes - done);
      auto* const copy = static_cast<std::byte*>(bounces_[current].data_ptr()) + filled;
      std::memcpy(copy, landing_->Bytes().data() + begin + done, bytes);
      // Hashes the copy that goes to the device, even if the landing memory is overwritten
      // meanwhile.
      XXH3_64bits_update(state.get(), copy, bytes);
      parts.push_back({filled, begin + done, bytes});
      done += bytes;
      filled += bytes;
      if (filled < kBounceBytes) continue;
      CopyFrom(bounces_[current], parts);
      current = 1 - current;
      filled = 0;
      parts.clear();
    }
    if (landings_ == Landings::kGivenBack) GiveBack(piece);
  }
  CopyFrom(bounces_[current], parts);
  device_.Finish(Queue::kCopy);
  return XXH3_64bits_digest(state.get());
}

void DeviceKvMemory::CopyFrom(const at::Tensor& bounce, const std::vector<Bounced>& parts) const {
  // On a device copies follow each other anyway.
  device_.Finish(Queue::kCopy);
  for (const Bounced& part : parts) {
    OnDevice(part.to, part.bytes)
        .copy_(bounce.narrow(0, static_cast<int64_t>(part.from), static_cast<int64_t>(part.bytes)),
               /*non_blocking=*/true);
  }
}

// Neighbours' bytes may lie in the first and the last OS page.
void DeviceKvMemory::GiveBack(const KvPiece& piece) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = BeginOf(geometry_, piece);  // The first piece begins with an OS page.
  const size_t first = (begin + page - 1) / page * page;
  const size_t end = (begin + piece.bytes) / page * page;
  if (first >= end) return;
  (void)madvise(landing_->Bytes().data() + first, end - first, MADV_DONTNEED);
}

}  // namespace baton
