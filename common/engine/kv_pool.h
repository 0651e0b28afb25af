// The memory of an executor's KV pages.
#ifndef COMMON_ENGINE_KV_POOL_H_
#define COMMON_ENGINE_KV_POOL_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/engine/kv_geometry.h"

namespace baton {

class KvPool {
 public:
  // Maps all pages at once, zeroed. ResourceExhausted, with the size, when that is too much.
  static absl::StatusOr<std::unique_ptr<KvPool>> Create(const KvGeometry& geometry);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvGeometry& geometry() const { return geometry_; }
  // All pages, behind each other.
  std::span<std::byte> Bytes() { return {base_, size_}; }

  // [token][dim] of one head, for `layer` of the whole model's numbering, as elements of the
  // geometry's type (float or kernels::Bf16).
  template <typename Element>
  Element* Keys(int page, int layer, int head) {
    return reinterpret_cast<Element*>(Head(page, layer, 0, head));
  }
  template <typename Element>
  Element* Values(int page, int layer, int head) {
    return reinterpret_cast<Element*>(Head(page, layer, 1, head));
  }

 private:
  KvPool(const KvGeometry& geometry, std::byte* base, size_t size)
      : geometry_(geometry), base_(base), size_(size) {}
  std::byte* Head(int page, int layer, int value, int head);

  const KvGeometry geometry_;
  std::byte* const base_;
  const size_t size_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_KV_POOL_H_
