// What all layers of one step need to know of its batch, on the device: where its rows are, and
// what each attends to. It is uploaded once, from pinned memory, and no layer waits for the host.
// Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_STEP_H_
#define COMMON_ENGINE_TORCH_TORCH_STEP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/engine/attention/rotary.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/kernels/device_kernels.h"
#include "common/engine/torch/torch_attention.h"
#include "common/engine/torch/torch_device.h"

namespace baton {

struct TorchStep {
  // A run of a sequence's tokens.
  struct Chunk {
    int64_t row = 0;  // Its first in the batch.
    int64_t tokens = 0;
    int64_t prefix = 0;
    at::Tensor pages;  // The prefix's.
  };
  // The next pages of those of a group's rows that have any left: a part of them, from the first.
  struct DecodeBlock {
    at::Tensor pages;   // [rows, pages]; past a sequence's end any page.
    at::Tensor unseen;  // [rows, 1, 1, 1, tokens]; undefined if all is seen.
  };
  // Rows that are computed together: as many as have room for a page each.
  struct DecodeGroup {
    int64_t first = 0;  // Among decode_rows.
    int64_t rows = 0;
    std::vector<DecodeBlock> blocks;
  };

  at::Tensor tokens;      // [tokens] Ids.
  at::Tensor positions;   // [tokens] int64
  at::Tensor page, slot;  // [tokens] Where their KV is.
  at::Tensor cos, sin;    // [tokens, 1, rope_dim / 2] Of the positions; the layers' first work.
  at::Tensor last;        // Rows whose logits are wanted.
  std::vector<Chunk> chunks;
  // Single tokens; undefined if there are none. Those that see the most pages are first if they
  // are computed in groups.
  at::Tensor decode_rows;
  std::vector<DecodeGroup> decode_groups;
  PagedRows paged;      // Instead of groups, for kernels that read pages.
  at::Tensor kv_heads;  // [heads] 0, 1, ...: beside page ids they select rows of pages.

  std::vector<at::Tensor> staging;  // Read by the device until the step is done.
};

// What a sequence's single token sees: pages, and the part of them, counted from the first token of
// the first page.
struct SeenPages {
  std::span<const int32_t> pages;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return static_cast<int64_t>(pages.size()); }
};

// `window` as in ChunkShape.
SeenPages PagesSeenBy(const SequenceSlice& slice, int64_t page_size, int64_t window);

struct StepShape {
  int64_t page_size = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;           // As in ChunkShape.
  int64_t gather_elements = 0;  // Keys, and values, that decode rows gather at once.
  bool paged = false;           // Whether kernels read the pages of single tokens.
};

// Rotary's angles where the layers are.
class TorchRotary {
 public:
  TorchRotary(const ModelConfig& config, bool sliding, const TorchDevice& device);
  // Cosines and sines of int64 `positions` on the device: [2, tokens, 1, half]. `kernels` may be
  // null.
  at::Tensor Angles(const at::Tensor& positions, c10::ScalarType type,
                    const DeviceKernels* kernels) const;

 private:
  const Rotary rotary_;
  at::Tensor frequencies_;  // On a GPU.
};

TorchStep PlanStep(const Batch& batch, const StepShape& shape, const TorchDevice& device);

// Attention of the single tokens, in their order there: `query` is [rows, kv_heads, group,
// key_dim], `gather` returns keys and values [rows, kv_heads, tokens, dim] of page ids [rows,
// pages].
at::Tensor AttendDecodes(const TorchStep& step, const at::Tensor& query,
                         const std::function<KeyBlock(const at::Tensor& pages)>& gather,
                         const ScoreForm& form);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_STEP_H_
