// How a row-parallel projection (attention's output, the feed-forward layer's second) overlaps its
// all-reduce with computation: the step's tokens are cut into chunks, and a chunk's sums are
// reduced while the next chunk is multiplied. The options and conditions are those of vLLM for
// Gaudi (HPURowParallelLinear).
//
// Chunks change only the time: rows are independent and sums are taken in rank order, so the bits
// stay the same.
#ifndef COMMON_ENGINE_RANKS_ROW_PARALLEL_H_
#define COMMON_ENGINE_RANKS_ROW_PARALLEL_H_

#include <cstdint>
#include <vector>

#include "common/types/instance.h"

namespace baton {

inline constexpr int kRowParallelChunksMax = 64;

struct RowParallelOptions {
  int chunks = 1;        // 1: never cut; 0 (auto): the best by RowParallelCosts.
  int threshold = 8192;  // Steps with fewer tokens are not cut.
};

// The cost of one projection and its sum on this machine and group, measured when the group forms.
// Equal on all ranks, since they must cut alike. All zero if not measured.
struct RowParallelCosts {
  int64_t matmul_call_ns = 0;  // Per call, besides its rows.
  int64_t matmul_row_ns = 0;
  int64_t reduce_call_ns = 0;
  int64_t reduce_row_ns = 0;
};

// The time of one projection of `tokens` rows and its all-reduce in `chunks` parts. All sums but
// the last chunk's overlap all products but the first chunk's.
int64_t RowParallelNs(const RowParallelCosts& costs, int tokens, int chunks);

// The number of chunks for a step of `tokens`: 1 unless there are several ranks, chunks are
// enabled, and the step reaches the threshold. auto takes the lowest power of two up to
// kRowParallelChunksMax that is within 2% of the best by RowParallelNs: more chunks gain little,
// and calls cost more on a busy machine than when they were measured.
int RowParallelChunks(const RowParallelOptions& options, const RowParallelCosts& costs, int ranks,
                      int tokens);

// Cuts [0, tokens) into `chunks` runs of nearly equal length. None is empty, so there are at most
// `tokens`.
std::vector<IndexRange> CutRows(int tokens, int chunks);

}  // namespace baton

#endif  // COMMON_ENGINE_RANKS_ROW_PARALLEL_H_
