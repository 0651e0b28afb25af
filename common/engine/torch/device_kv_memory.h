// KV pages in a device's memory. Both doors lead through host memory that a transport reads and
// writes: an export copies its pieces into pinned memory of its own, and what has landed is copied
// from its place to its page. Copies have a thread and a queue (Queue::kCopy) of their own, so that
// neither the data thread nor a step waits for them. Part of the plugin.
//
// The places to land in are ordinary memory, as many bytes as the pages, of which the host gives
// only those that something has landed in: none on a prefill stage. They are copied on through a
// small pinned buffer. Rejected: pinning them all, which would take a host's memory for every
// process that never needs it.
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

// Pinned memory that exports may hold together; a larger one goes when no other is there.
inline constexpr size_t kExportStagingBytes = size_t{64} << 20;

class DeviceKvMemory final : public KvMemory {
 public:
  // `pages` is contiguous, geometry.page_count pages of any type and shape on the device. Throws
  // what torch throws, ResourceExhausted if the host has no addresses for what may land.
  static absl::StatusOr<std::unique_ptr<DeviceKvMemory>> Create(const KvGeometry& geometry,
                                                                const TorchDevice& device,
                                                                const at::Tensor& pages);
  ~DeviceKvMemory() override { copies_.Stop(); }  // Ends what was asked for.

  void ClearTail(int page, int valid_tokens) override;
  void Export(const std::vector<KvPiece>& pieces, Exported done) override;
  void EndExport(uint64_t export_id) override;
  MemorySpan Landing(const KvPiece& piece) override;
  void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) override;

 private:
  struct Staged {
    size_t bytes = 0;
    at::Tensor memory;  // Undefined until it is copied.
  };

  DeviceKvMemory(const KvGeometry& geometry, const TorchDevice& device, const at::Tensor& pages,
                 std::unique_ptr<KvPool> landing);

  // Where a piece begins, counted from the first page's begin.
  size_t Begin(const KvPiece& piece) const;
  // Bytes of pages, on the device.
  at::Tensor OnDevice(size_t begin, size_t bytes) const;
  // Takes room for an export and numbers it.
  absl::StatusOr<uint64_t> TakeRoom(size_t bytes);
  // On the thread of the copies.
  absl::StatusOr<ExportedKv> CopyOut(const std::vector<KvPiece>& pieces, size_t bytes,
                                     uint64_t export_id);
  absl::StatusOr<uint64_t> CopyIn(const std::vector<KvPiece>& pieces);

  const KvGeometry geometry_;
  const TorchDevice device_;
  const at::Tensor pages_;  // [bytes] uint8, on the device.
  const std::unique_ptr<KvPool> landing_;
  const at::Tensor bounce_;  // Pinned; the thread of the copies has it.
  absl::Status cleared_;     // What a ClearTail has failed with; that thread's as well.

  Mutex mutex_;
  uint64_t next_export_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t staged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Staged> exports_ ABSL_GUARDED_BY(mutex_);

  EventLoop copies_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_
