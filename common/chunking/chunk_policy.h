// The size of a plan: a policy sets its token budget.
#ifndef COMMON_CHUNKING_CHUNK_POLICY_H_
#define COMMON_CHUNKING_CHUNK_POLICY_H_

#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/chunking/stage_cost.h"

namespace baton {

// Where the prompt stands that a plan begins with: the oldest one that has tokens left.
struct ChunkPosition {
  int prefix_length = 0;     // Tokens planned before.
  int remaining_tokens = 0;  // > 0
  int64_t other_tokens = 0;  // Not yet planned, of all other prompts.
  int stages = 1;            // In the chain.
};

class ChunkPolicy {
 public:
  virtual ~ChunkPolicy() = default;

  // What each stage's plans cost, as far as it is known by now; empty: it is not, or not any more,
  // and the policy falls back to what needs no costs.
  virtual void SetCosts(std::vector<StageCost> stages) = 0;

  // Tokens that a plan beginning at `position` may hold: at least one page, at most
  // max_plan_tokens(). What the first prompt leaves goes to younger ones.
  virtual int PlanTokens(const ChunkPosition& position) = 0;

  // The largest PlanTokens ever; activation buffers are sized by it.
  virtual int max_plan_tokens() const = 0;
};

enum class ChunkRule : uint8_t {
  kFixed,  // The same budget for every plan.
  // As SGLang's dynamic chunking (chunk_plan.h), within its caps: at most later_tokens, and a
  // hundred fewer than the context has left, in whole units; where that is none, the base.
  kSglang,
  // The earliest first token while a prompt is alone: it is cut by PlanOptimal, once, and its
  // chunks are those; one that begins between two of the cuts has the tokens of the chunk that was
  // to be there. It is cut anew when its first chunk would by now take a tenth more or less, or
  // what of that does not depend on its size three tenths. Throughput while so many tokens of
  // others wait that each further stage of the chain has an efficient chunk of them: then plans are
  // that, the smallest of which a seventh is overhead. While costs are not known: a prompt's
  // tokens by four chunks for each stage, in whole pages, of at least 512, and half of it at the
  // prompt's begin; of one stage as many as may be, and half of that at the begin while others
  // wait.
  kOptimal,
};

// As --chunk-policy has them: "fixed", "sglang", "optimal".
const char* ChunkRuleName(ChunkRule rule);
std::optional<ChunkRule> ParseChunkRule(const std::string& name);

struct ChunkOptions {
  ChunkRule rule = ChunkRule::kFixed;
  int page_size = 1;
  // The size for kFixed, the base for kSglang, the maximum for kOptimal. A multiple of page_size.
  int chunk_tokens = 0;
  int max_context_tokens = 0;   // No prompt is longer.
  double smooth_factor = 0.75;  // For kSglang.
  int later_tokens = INT_MAX;   // For kSglang: the maximum after a prompt's first chunk.
};

// Who sets no chunk size (INT_MAX) wants no prompt cut, by whatever rule; and no chunk is larger
// than the longest prompt, in whole pages.
ChunkOptions WithinContext(ChunkOptions options);

std::unique_ptr<ChunkPolicy> MakeChunkPolicy(const ChunkOptions& options);

}  // namespace baton

#endif  // COMMON_CHUNKING_CHUNK_POLICY_H_
