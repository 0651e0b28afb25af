// KV pages in a device's memory. Exports and landings go through host memory that a transport can
// use: an export copies its pieces into pinned memory of its own, and landed bytes are copied to
// their page. Copies have a thread and a queue (Queue::kCopy) of their own, so neither the data
// thread nor a step waits for them. Part of the plugin.
//
// Landing memory is ordinary memory of the same size as the pages. The kernel provides it only
// where something has landed: nowhere on a prefill stage. It is copied to the device through a
// small pinned buffer. Rejected: pinning all of it, which would take the memory even in processes
// where nothing lands.
#ifndef COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_
#define COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/kv_memory.h"
#include "common/engine/torch/torch_device.h"

namespace baton {

// Pinned memory that all exports may hold together. A larger export is accepted if there is no
// other.
inline constexpr size_t kExportStagingBytes = size_t{64} << 20;

class DeviceKvMemory final : public KvMemory {
 public:
  // `pages` is contiguous: geometry.page_count pages of any type and shape on the device. Throws
  // what torch throws. ResourceExhausted if the host has no address space for the landings.
  static absl::StatusOr<std::unique_ptr<DeviceKvMemory>> Create(const KvGeometry& geometry,
                                                                const TorchDevice& device,
                                                                const at::Tensor& pages);
  ~DeviceKvMemory() override { copies_.Stop(); }  // Finishes the submitted copies.

  void ClearTail(int page, int valid_tokens) override;
  void Export(const std::vector<KvPiece>& pieces, Exported done) override;
  void EndExport(uint64_t export_id) override;
  MemorySpan Landing(const KvPiece& piece) override;
  void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) override;

 private:
  struct Staged {
    size_t bytes = 0;
    at::Tensor memory;  // Undefined until the copy.
  };

  DeviceKvMemory(const KvGeometry& geometry, const TorchDevice& device, const at::Tensor& pages,
                 std::unique_ptr<KvPool> landing);

  // The offset in bytes of a piece from the start of the first page.
  size_t Begin(const KvPiece& piece) const;
  // Bytes of pages, on the device.
  at::Tensor OnDevice(size_t begin, size_t bytes) const;
  // Reserves staging memory for an export and returns its id.
  absl::StatusOr<uint64_t> TakeRoom(size_t bytes);
  // These run on the copy thread.
  absl::StatusOr<ExportedKv> CopyOut(const std::vector<KvPiece>& pieces, size_t bytes,
                                     uint64_t export_id);
  absl::StatusOr<uint64_t> CopyIn(const std::vector<KvPiece>& pieces);

  const KvGeometry geometry_;
  const TorchDevice device_;
  const at::Tensor pages_;  // [bytes] uint8, on the device.
  const std::unique_ptr<KvPool> landing_;
  const at::Tensor bounce_;  // Pinned; used by the copy thread.
  absl::Status cleared_;     // The error of a ClearTail, if any; used by the copy thread.

  Mutex mutex_;
  uint64_t next_export_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t staged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Staged> exports_ ABSL_GUARDED_BY(mutex_);

  EventLoop copies_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_
