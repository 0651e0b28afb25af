#include "common/preflight/auto_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace baton {
namespace {

// A chain as it would be with chunks of so many tokens, its processes wherever they run.
absl::StatusOr<HostMemory> PlanChain(v1::Options options, const ModelFacts& model,
                                     int64_t context_tokens, int64_t chunk_tokens) {
  options.set_chunked_prefill_size(chunk_tokens);
  options.set_prefill_chains(1);
  options.set_decodes(1);
  options.set_decode_tp_size(1);
  // What is played is to be cut as it would be; what a GPU holds has to fit there.
  if (options.executor() == "timed") options.set_executor("native");
  options.set_device("cpu");
  return PlanMemory(options, v1::OptionSpec::UP, model, context_tokens);
}

// Whether `larger` chunks than `least` take no process too much beside its KV cache.
bool Affordable(const HostMemory& least, const HostMemory& larger) {
  for (size_t i = 0; i < least.processes.size(); ++i) {
    const ProcessMemory& process = larger.processes[i];
    if (!absl::StartsWith(process.name, kPrefillName)) continue;
    const int64_t more = process.buffers - least.processes[i].buffers;
    if (more > process.kv / kAutoChunkKvShare) return false;
  }
  return true;
}

absl::StatusOr<AutoChunk> Optimal(const v1::Options& options, const ModelFacts& model,
                                  int64_t context_tokens) {
  if (options.pp_size() == 1) return AutoChunk{kLeastAutoChunk, "--pp-size 1"};
  AutoChunk chunk = {kLeastAutoChunk, "--kv-cache-tokens, a fifth of whose memory is for chunks"};
  BATON_ASSIGN_OR_RETURN(const HostMemory least,
                         PlanChain(options, model, context_tokens, kLeastAutoChunk));
  while (chunk.tokens < kMostAutoChunk) {
    BATON_ASSIGN_OR_RETURN(const HostMemory larger,
                           PlanChain(options, model, context_tokens, 2 * chunk.tokens));
    if (!Affordable(least, larger)) return chunk;
    chunk.tokens *= 2;
  }
  chunk.source = "--chunk-policy optimal, which wants no more";
  return chunk;
}

AutoChunk Within(AutoChunk chunk, const v1::Options& options, int64_t context_tokens) {
  const int64_t page = options.page_size();
  const int64_t longest = (context_tokens + page - 1) / page * page;
  if (longest < chunk.tokens) chunk = {longest, "--context-length"};
  const int64_t most = options.max_prefill_tokens() / page * page;
  if (most > 0 && most < chunk.tokens) chunk = {most, "--max-prefill-tokens"};
  return chunk;
}

}  // namespace

const AutoChunk& AutoChunks::Of(ChunkRule rule) const {
  if (rule == ChunkRule::kOptimal) return optimal;
  return rule == ChunkRule::kSglang ? sglang : fixed;
}

absl::StatusOr<AutoChunks> FindAutoChunks(const v1::Options& options, const ModelFacts& model,
                                          int64_t context_tokens) {
  BATON_ASSIGN_OR_RETURN(AutoChunk optimal, Optimal(options, model, context_tokens));
  AutoChunks chunks;
  chunks.fixed = Within({kLeastAutoChunk, "--chunk-policy fixed"}, options, context_tokens);
  chunks.sglang = Within({kSglangAutoChunk, "--chunk-policy sglang"}, options, context_tokens);
  chunks.optimal = Within(std::move(optimal), options, context_tokens);
  return chunks;
}

}  // namespace baton
