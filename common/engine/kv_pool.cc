#include "common/engine/kv_pool.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "common/device/memory.h"

namespace baton {

absl::StatusOr<std::unique_ptr<KvPool>> KvPool::Create(const KvGeometry& geometry) {
  size_t size = 0;
  if (__builtin_mul_overflow(geometry.PageBytes(), static_cast<size_t>(geometry.page_count),
                             &size)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(geometry.page_count, " KV pages of ", geometry.PageBytes(), " bytes"));
  }
  // Fresh anonymous memory is zero and page-aligned, as transports like it, and is touched only
  // when a page is first used.
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", geometry.page_count, " KV pages of ", geometry.PageBytes(), " bytes"));
  }
  // Readers in other processes look up each page that they copy (common/transport, "Pulls"), which
  // with small ones takes longer than the copying.
  PreferHugePages(base, size);
  return std::unique_ptr<KvPool>(new KvPool(geometry, static_cast<std::byte*>(base), size));
}

KvPool::~KvPool() { munmap(base_, size_); }

std::byte* KvPool::Head(int page, int layer, int value, int head) {
  const auto local_layer = static_cast<size_t>(layer - geometry_.layer_begin);
  const size_t run = static_cast<size_t>(value) * static_cast<size_t>(geometry_.kv_heads) +
                     static_cast<size_t>(head);
  return base_ + static_cast<size_t>(page) * geometry_.PageBytes() +
         local_layer * geometry_.LayerBytes() + run * geometry_.HeadBytes();
}

}  // namespace baton
