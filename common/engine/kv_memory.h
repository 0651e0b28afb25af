// How an executor's KV pages are laid out, and how services read and write them: by page id,
// through exports and landings. An export makes bytes readable by a transport. A landing is memory
// that a transport writes; its bytes become part of the page when the landing is finished. In host
// memory both are the pages themselves, except for exports that are gathered from several pieces. A
// device may copy in between, so pointers are valid only as long as each call says.
//
// The caller tracks who owns a page, and makes sure that no step reads a page that is being
// written.
#ifndef COMMON_ENGINE_KV_MEMORY_H_
#define COMMON_ENGINE_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/memory.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton {

// The layout of an executor's KV pages: [page][layer][plane][head][token][row]. The layers of one
// stage are one contiguous run of bytes within a page.
struct KvGeometry {
  int layer_begin = 0;  // Layers [layer_begin, layer_end) of the model are here.
  int layer_end = 0;
  int head_begin = 0;  // KV heads [head_begin, head_begin + kv_heads) of the model are here.
  int kv_heads = 0;
  int head_dim = 0;   // Elements of a row.
  int page_size = 0;  // Tokens per page.
  int page_count = 0;
  ElementType element_type = ElementType::kFloat32;
  int planes = 2;  // Keys and values; or one, of which both are computed.

  IndexRange heads() const { return {head_begin, head_begin + kv_heads}; }
  int layers() const { return layer_end - layer_begin; }
  // Bytes of one head in one plane of one page and layer: [token][row].
  size_t HeadBytes() const {
    return static_cast<size_t>(page_size) * static_cast<size_t>(head_dim) *
           ElementBytes(element_type);
  }
  // The page as the hand-off describes it, with the layers and heads of this executor alone.
  KvLayout layout() const {
    return {layers(), kv_heads, head_dim, page_size, static_cast<int>(ElementBytes(element_type)),
            planes};
  }
  // Bytes of one layer of one page: [plane][head][token][row].
  size_t LayerBytes() const { return layout().BytesPerLayer(); }
  // Bytes of one page: [layer][plane][head][token][row].
  size_t PageBytes() const { return layout().BandBytes({layer_begin, layer_end}); }
  // Bytes that one token takes in all layers of this executor.
  size_t TokenBytes() const { return PageBytes() / static_cast<size_t>(page_size); }
};

// Consecutive tokens of one sequence. A step's sequence (executor.h) and a model's slice
// (stage_model.h) extend it. The caller owns what the spans point to.
struct TokenRun {
  // [token_count] ids on the first stage (layer_begin == 0). Later stages ignore them, but for a
  // draw that adds the last token to its history.
  std::span<const int32_t> tokens;
  int token_count = 0;
  // The number of the sequence's tokens whose KV is in `pages` already. This run's KV is written
  // after them.
  int prefix_length = 0;
  // Page ids in sequence order: page i holds tokens [i * page_size, (i + 1) * page_size). At least
  // ceil((prefix_length + token_count) / page_size); further ids are allowed and not used.
  std::span<const int32_t> pages;
};

// Bytes [offset_bytes, offset_bytes + bytes) from the start of page `page`. They may extend into
// the pages with the next ids; all of these pages must exist.
struct KvPiece {
  int page = 0;
  size_t offset_bytes = 0;
  size_t bytes = 0;
};

// KV that a transport may read until EndExport; its bytes do not change until then.
struct ExportedKv {
  uint64_t export_id = 0;
  MemorySpan memory;
  uint64_t checksum = 0;  // XXH3-64.
};

// Used by one thread at a time, a worker's data thread; another thread may submit steps. Each
// `done` is called exactly once: on the calling thread before the call returns, or later on one of
// the executor's threads.
class KvMemory {
 public:
  using Exported = std::function<void(absl::StatusOr<ExportedKv>)>;
  using Landed = std::function<void(absl::StatusOr<uint64_t> checksum)>;

  KvMemory() = default;
  virtual ~KvMemory() = default;
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;

  // Zeroes everything behind the first `valid_tokens` of a page, in all of its layers and heads: it
  // may hold another request's KV. Takes effect before every export that follows.
  virtual void ClearTail(int page, int valid_tokens) = 0;

  // Exports `pieces`, at least one, concatenated. A single piece is exported in place where a
  // transport can read the pages; several are gathered into memory of this export.
  // ResourceExhausted if there is no memory for that, or if a device's staging buffers are full;
  // the caller then waits for the EndExport of another export. After a success the caller must call
  // EndExport.
  virtual void Export(const std::vector<KvPiece>& pieces, Exported done) = 0;
  virtual void EndExport(uint64_t export_id) = 0;

  // The contiguous memory into which a transport writes the bytes of `piece`. It is fixed for each
  // page during the executor's life, so this cannot fail.
  virtual MemorySpan Landing(const KvPiece& piece) = 0;

  // Called when all bytes of `pieces` have been written. `done` gets the XXH3-64 of the bytes in
  // this order. The bytes are part of their pages before any step that is submitted after `done`.
  // The caller compares the checksum; if it is wrong, the caller must not let a step read these
  // pages.
  virtual void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_KV_MEMORY_H_
