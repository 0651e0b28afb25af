#include "common/engine/row_parallel.h"

#include <algorithm>

namespace baton {

int64_t RowParallelNs(const RowParallelCosts& costs, int tokens, int chunks) {
  const int64_t rows = (tokens + chunks - 1) / chunks;
  const int64_t matmul = costs.matmul_call_ns + rows * costs.matmul_row_ns;
  const int64_t reduce = costs.reduce_call_ns + rows * costs.reduce_row_ns;
  return matmul + (chunks - 1) * std::max(matmul, reduce) + reduce;
}

int RowParallelChunks(const RowParallelOptions& options, const RowParallelCosts& costs, int ranks,
                      int tokens) {
  if (ranks == 1 || tokens < options.threshold) return 1;
  if (options.chunks > 0) return std::min(options.chunks, tokens);
  int best = 1;
  for (int chunks = 2; chunks <= std::min(kRowParallelChunksMax, tokens); chunks *= 2) {
    if (RowParallelNs(costs, tokens, chunks) < RowParallelNs(costs, tokens, best)) best = chunks;
  }
  return best;
}

std::vector<IndexRange> CutRows(int tokens, int chunks) {
  chunks = std::min(chunks, tokens);
  std::vector<IndexRange> cuts;
  for (int64_t i = 0; i < chunks; ++i) {
    cuts.push_back(
        {static_cast<int>(i * tokens / chunks), static_cast<int>((i + 1) * tokens / chunks)});
  }
  return cuts;
}

}  // namespace baton
