#include "common/engine/ranks/row_parallel.h"

#include <algorithm>

namespace baton {
namespace {

// A time within 1/50 of the best counts as the best.
constexpr int64_t kNearlyBest = 50;

}  // namespace

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
  std::vector<int> counts;
  int64_t best_ns = INT64_MAX;
  for (int chunks = 1; chunks <= std::min(kRowParallelChunksMax, tokens); chunks *= 2) {
    counts.push_back(chunks);
    best_ns = std::min(best_ns, RowParallelNs(costs, tokens, chunks));
  }
  const int64_t enough_ns = best_ns + best_ns / kNearlyBest;
  return *std::find_if(counts.begin(), counts.end(), [&](int chunks) {
    return RowParallelNs(costs, tokens, chunks) <= enough_ns;
  });
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
