// What --chunked-prefill-size=auto comes to. It follows from the model and the options alone, and
// not from the machine: workers that are started one by one come to the same without a word to one
// another. Rejected: the least of what all stages could hold, told when they join. It would have to
// be told again whenever one comes back, and buffers are made by it.
#ifndef COMMON_PREFLIGHT_AUTO_CHUNKS_H_
#define COMMON_PREFLIGHT_AUTO_CHUNKS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/chunking/chunk_policy.h"
#include "common/preflight/memory_plan.h"

namespace baton {

// The size for a rule with fixed sizes and the minimum for kOptimal: SGLang's size on small GPUs.
inline constexpr int64_t kLeastAutoChunk = 2048;
// The size for kSglang, which only makes chunks smaller: SGLang's size on GPUs of 60 GB and more.
inline constexpr int64_t kSglangAutoChunk = 8192;
// The maximum for kOptimal: more than the planner used for any prompt tried (docs/tuning.md).
inline constexpr int64_t kMostAutoChunk = 32768;
// What kOptimal's chunks may take beyond the least, as one part in so many of a stage's KV cache.
inline constexpr int64_t kAutoChunkKvShare = 5;

struct AutoChunk {
  int64_t tokens = 0;
  std::string source;  // What decided: "--chunk-policy fixed".
};

struct AutoChunks {
  AutoChunk fixed;
  AutoChunk sglang;
  AutoChunk optimal;

  const AutoChunk& Of(ChunkRule rule) const;
};

// --kv-cache-tokens counts as it was given, whatever --mem-fraction-static makes of it on this
// machine. Errors are PlanMemory's.
absl::StatusOr<AutoChunks> FindAutoChunks(const v1::Options& options, const ModelFacts& model,
                                          int64_t context_tokens);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_AUTO_CHUNKS_H_
