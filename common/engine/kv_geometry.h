// How an executor's KV pages lie in its memory.
#ifndef COMMON_ENGINE_KV_GEOMETRY_H_
#define COMMON_ENGINE_KV_GEOMETRY_H_

#include <cstddef>

#include "common/types/element_type.h"
#include "common/types/kv_layout.h"
#include "common/types/tensor_rank.h"

namespace baton {

// How an executor's KV pool lies in memory: [page][layer][K/V][head][token][dim], so that the
// layers of one stage are one run of bytes within a page.
struct KvGeometry {
  int layer_begin = 0;  // Layers [layer_begin, layer_end) of the model are here.
  int layer_end = 0;
  int head_begin = 0;  // KV heads [head_begin, head_begin + kv_heads) of the model are here.
  int kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // Tokens per page.
  int page_count = 0;
  ElementType element_type = ElementType::kFloat32;

  IndexRange heads() const { return {head_begin, head_begin + kv_heads}; }
  int layers() const { return layer_end - layer_begin; }
  // Bytes of one head's keys (or values) of one page and layer: [token][dim].
  size_t HeadBytes() const {
    return static_cast<size_t>(page_size) * static_cast<size_t>(head_dim) *
           ElementBytes(element_type);
  }
  // The pool's page as the hand-off describes it, with this executor's layers and heads
  // alone.
  KvLayout layout() const {
    return {layers(), kv_heads, head_dim, page_size, static_cast<int>(ElementBytes(element_type))};
  }
  // Bytes of one layer of one page: [K/V][head][token][dim].
  size_t LayerBytes() const { return layout().BytesPerLayer(); }
  // Bytes of one page: [layer][K/V][head][token][dim].
  size_t PageBytes() const { return layout().BandBytes({layer_begin, layer_end}); }
  // Bytes that one token takes in all layers of this executor.
  size_t TokenBytes() const { return PageBytes() / static_cast<size_t>(page_size); }
};

}  // namespace baton

#endif  // COMMON_ENGINE_KV_GEOMETRY_H_
