// KV pages in a device's memory. Exports and landings go through host memory that a transport can
// use: an export copies its pieces into pinned memory of its own, and landed bytes are copied to
// their page. Copies have a thread and a queue (Queue::kCopy) of their own, so neither the data
// thread nor a step waits for them. Part of the plugin.
//
// Landing memory is ordinary memory as large as the pages in address space. The kernel provides it
// only where something lands: nowhere on a prefill stage. What has landed is copied to the device
// through two small pinned buffers, one of which is filled while the other is copied. Then its
// whole OS pages go back to the kernel, which provides new ones when something lands there again.
// They stay where a NIC may hold on to them, since it would go on writing to the old ones
// (Landings). Rejected: pinning all of it, which would take the memory even in processes where
// nothing lands.
//
// Exports are counted as libtorch allocates pinned memory: in powers of two. It keeps what is freed
// for the next export of such a size, so exports of one size, which most are, never take more than
// kExportStagingBytes together.
#ifndef COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_
#define COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <array>
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

// What happens to landing memory once its bytes are on the device. kGivenBack is for transports
// that write by this process' own mappings alone: TCP, and reads of other processes.
enum class Landings { kKept, kGivenBack };

class DeviceKvMemory final : public KvMemory {
 public:
  // `pages` is contiguous: geometry.page_count pages of any type and shape on the device. Throws
  // what torch throws. ResourceExhausted if the host has no address space for the landings.
  static absl::StatusOr<std::unique_ptr<DeviceKvMemory>> Create(const KvGeometry& geometry,
                                                                const TorchDevice& device,
                                                                const at::Tensor& pages,
                                                                Landings landings);
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

  // Bytes of a bounce buffer, and where they go among the pages.
  struct Bounced {
    size_t from = 0;
    size_t to = 0;
    size_t bytes = 0;
  };

  DeviceKvMemory(const KvGeometry& geometry, const TorchDevice& device, const at::Tensor& pages,
                 std::unique_ptr<KvPool> landing, Landings landings);

  // Bytes of pages, on the device.
  at::Tensor OnDevice(size_t begin, size_t bytes) const;
  // Reserves staging memory for an export and returns its id.
  absl::StatusOr<uint64_t> TakeRoom(size_t bytes);
  // These run on the copy thread.
  absl::StatusOr<ExportedKv> CopyOut(const std::vector<KvPiece>& pieces, size_t bytes,
                                     uint64_t export_id);
  absl::StatusOr<uint64_t> CopyIn(const std::vector<KvPiece>& pieces);
  // Starts the copies out of one bounce buffer when those out of the other have ended.
  void CopyFrom(const at::Tensor& bounce, const std::vector<Bounced>& parts) const;
  void GiveBack(const KvPiece& piece);

  const KvGeometry geometry_;
  const TorchDevice device_;
  const at::Tensor pages_;  // [bytes] uint8, on the device.
  const std::unique_ptr<KvPool> landing_;
  const Landings landings_;
  const std::array<at::Tensor, 2> bounces_;  // Pinned; used by the copy thread.
  absl::Status cleared_;  // The error of a ClearTail, if any; used by the copy thread.

  Mutex mutex_;
  uint64_t next_export_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t staged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Staged> exports_ ABSL_GUARDED_BY(mutex_);

  EventLoop copies_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_DEVICE_KV_MEMORY_H_
