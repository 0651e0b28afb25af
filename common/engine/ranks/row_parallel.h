// How a row-parallel projection (attention's output, the feed-forward layer's second) hides its
// all-reduce: the step's tokens are cut into chunks, and a chunk's sums travel while the next one
// multiplies. Options and conditions are vLLM's for Gaudi (HPURowParallelLinear).
//
// What chunks change is time alone: rows are multiplied without looking at one another and sums are
// taken in rank order, so every bit stays.
#ifndef COMMON_ENGINE_RANKS_ROW_PARALLEL_H_
#define COMMON_ENGINE_RANKS_ROW_PARALLEL_H_

#include <cstdint>
#include <vector>

#include "common/types/tensor_rank.h"

namespace baton {

inline constexpr int kRowParallelChunksMax = 64;

struct RowParallelOptions {
  int chunks = 1;        // 1: never cut; 0 (auto): what RowParallelCosts make best.
  int threshold = 8192;  // Tokens of a step, below which it is not cut.
};

// What one projection of this machine and group costs, measured when the group forms; equal on all
// ranks, which must cut alike. None: not measured.
struct RowParallelCosts {
  int64_t matmul_call_ns = 0;  // Beside the rows'.
  int64_t matmul_row_ns = 0;
  int64_t reduce_call_ns = 0;
  int64_t reduce_row_ns = 0;
};

// Time of one projection of `tokens` rows and their all-reduce in `chunks` parts: all but the last
// chunk's sums, and the first one's product, hide behind one another.
int64_t RowParallelNs(const RowParallelCosts& costs, int tokens, int chunks);

// How many chunks a step of `tokens` is cut into: one unless there are more ranks, chunks are
// wanted, and the tokens reach the threshold. auto takes the lowest power of two up to
// kRowParallelChunksMax that is within 2% of the best by RowParallelNs: the last chunks gain
// little, and what costs more on a busy machine than when it was measured are calls.
int RowParallelChunks(const RowParallelOptions& options, const RowParallelCosts& costs, int ranks,
                      int tokens);

// [0, tokens) in `chunks` runs, as equal as can be; none is empty, so there are at most `tokens`.
std::vector<IndexRange> CutRows(int tokens, int chunks);

}  // namespace baton

#endif  // COMMON_ENGINE_RANKS_ROW_PARALLEL_H_
