// What every layer of this engine is asked for: some tokens of one sequence.
#ifndef COMMON_ENGINE_TOKEN_RUN_H_
#define COMMON_ENGINE_TOKEN_RUN_H_

#include <cstdint>
#include <span>

namespace baton {

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

}  // namespace baton

#endif  // COMMON_ENGINE_TOKEN_RUN_H_
