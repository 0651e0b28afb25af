// KV pages in host memory, and the memory itself. Exports and landings are the pages themselves,
// and every call is synchronous. Only an export of several pieces is copied, since many small
// messages would cost more.
#ifndef COMMON_ENGINE_ATTENTION_HOST_KV_MEMORY_H_
#define COMMON_ENGINE_ATTENTION_HOST_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/kv_memory.h"

namespace baton {

// The memory of an executor's KV pages.
class KvPool {
 public:
  // Maps all pages at once, zeroed. ResourceExhausted names the size if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<KvPool>> Create(const KvGeometry& geometry);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvGeometry& geometry() const { return geometry_; }
  // All pages, concatenated.
  std::span<std::byte> Bytes() { return {base_, size_}; }

  // [token][row] of one head, for `layer` of the whole model's numbering, as elements of the
  // geometry's type (float or kernels::Bf16).
  template <typename Element>
  Element* Plane(int page, int layer, int plane, int head) {
    return reinterpret_cast<Element*>(Head(page, layer, plane, head));
  }
  template <typename Element>
  Element* Keys(int page, int layer, int head) {
    return Plane<Element>(page, layer, 0, head);
  }
  template <typename Element>
  Element* Values(int page, int layer, int head) {
    return Plane<Element>(page, layer, 1, head);
  }

 private:
  KvPool(const KvGeometry& geometry, std::byte* base, size_t size)
      : geometry_(geometry), base_(base), size_(size) {}
  std::byte* Head(int page, int layer, int value, int head);

  const KvGeometry geometry_;
  std::byte* const base_;
  const size_t size_;
};

// The offset in bytes of a piece from the start of the first page, in memory of all pages.
size_t BeginOf(const KvGeometry& geometry, const KvPiece& piece);

class HostKvMemory final : public KvMemory {
 public:
  // `pages` are geometry.page_count concatenated pages; not owned.
  HostKvMemory(const KvGeometry& geometry, std::span<std::byte> pages);

  void ClearTail(int page, int valid_tokens) override;
  // Memory for gathered exports is bounded by what the caller has under way (kv_outbox.h).
  void Export(const std::vector<KvPiece>& pieces, Exported done) override;
  void EndExport(uint64_t export_id) override;
  MemorySpan Landing(const KvPiece& piece) override;
  void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) override;

 private:
  std::span<std::byte> Bytes(const KvPiece& piece) const;

  const KvGeometry geometry_;
  const std::span<std::byte> pages_;
  std::map<uint64_t, std::unique_ptr<std::byte[]>> gathered_;  // By export.
  uint64_t next_export_ = 1;
};

}  // namespace baton

#endif  // COMMON_ENGINE_ATTENTION_HOST_KV_MEMORY_H_
