// An executor's KV pages as others see them: by id, through two doors. What leaves is exported to
// where a transport can read it; what arrives lands where a transport can write it, and is a part
// of the page once the landing is finished. On a CPU both are the pages themselves, but for what
// is gathered from several places; a device may put copies in between, so nobody keeps a pointer
// beyond what the calls say.
//
// Which page belongs to whom, and that no step reads what is being written, is for the caller to
// know.
#ifndef COMMON_ENGINE_KV_MEMORY_H_
#define COMMON_ENGINE_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/memory.h"
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

// Consecutive tokens of one sequence. Plain data, of which a step's sequence and a model's slice
// are made; the spans are the caller's.
struct TokenRun {
  // [token_count] ids on the stage that embeds (layer_begin == 0); ignored on later stages.
  std::span<const int32_t> tokens;
  int token_count = 0;
  // Tokens of this sequence whose KV is in `pages` already; this run's is written after them.
  int prefix_length = 0;
  // Page ids in sequence order: page i holds tokens [i * page_size, (i + 1) * page_size). At least
  // ceil((prefix_length + token_count) / page_size); more are allowed and not touched.
  std::span<const int32_t> pages;
};

// Bytes [offset, offset + bytes) counted from the begin of page `page`. They may go on into the
// pages whose ids follow; all of them must exist.
struct KvPiece {
  int page = 0;
  size_t offset_bytes = 0;
  size_t bytes = 0;
};

// KV on its way out, unchanged until EndExport.
struct ExportedKv {
  uint64_t export_id = 0;
  MemorySpan memory;
  uint64_t checksum = 0;  // XXH3-64.
};

// Used by one thread at a time, the data thread of a worker; it need not be the one that submits
// steps. Each `done` is called exactly once: on the calling thread before the call returns, or
// later on a thread of the executor's.
class KvMemory {
 public:
  using Exported = std::function<void(absl::StatusOr<ExportedKv>)>;
  using Landed = std::function<void(absl::StatusOr<uint64_t> checksum)>;

  KvMemory() = default;
  virtual ~KvMemory() = default;
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;

  // Zeroes what lies behind the first `valid_tokens` of a page in all of its layers and heads: it
  // was written for somebody else. Before every export that follows.
  virtual void ClearTail(int page, int valid_tokens) = 0;

  // Exports `pieces` behind each other: one as it lies, where a transport can read the pages
  // themselves, several gathered into memory of this export's own. At least one piece.
  // ResourceExhausted if there is no room for that, or a device's staging has none: then EndExport
  // of another one is what to wait for. After a success EndExport is due.
  virtual void Export(const std::vector<KvPiece>& pieces, Exported done) = 0;
  virtual void EndExport(uint64_t export_id) = 0;

  // Where the bytes of `piece` are to be placed, contiguous, in memory that a transport writes.
  // Every page has its place for the whole life of the executor, so this cannot fail.
  virtual MemorySpan Landing(const KvPiece& piece) = 0;

  // All of `pieces` has been placed: tells the XXH3-64 of their bytes in this order, and makes them
  // part of their pages before any step that is submitted after `done`. Whether the bytes are the
  // right ones is for the caller to say; wrong ones are in pages that nobody reads.
  virtual void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_KV_MEMORY_H_
