// The size of a plan. A policy sets the token budget of a plan; FitChunk says how much of a
// prompt fits into what is left of it.
#ifndef COMMON_CHUNKING_CHUNK_POLICY_H_
#define COMMON_CHUNKING_CHUNK_POLICY_H_

namespace baton {

// Where the prompt stands that a plan begins with: the oldest one that has tokens left.
struct ChunkPosition {
  int prefix_length = 0;     // Tokens planned before.
  int remaining_tokens = 0;  // > 0
};

class ChunkPolicy {
 public:
  virtual ~ChunkPolicy() = default;

  // Tokens that a plan beginning at `position` may hold: at least one page, at most
  // max_plan_tokens(). What the first prompt leaves goes to younger ones.
  virtual int PlanTokens(const ChunkPosition& position) const = 0;

  // The largest PlanTokens ever; activation buffers are sized by it.
  virtual int max_plan_tokens() const = 0;
};

// The same budget for every plan.
class FixedChunks final : public ChunkPolicy {
 public:
  explicit FixedChunks(int chunk_tokens) : chunk_tokens_(chunk_tokens) {}

  int PlanTokens(const ChunkPosition& /*position*/) const override { return chunk_tokens_; }
  int max_plan_tokens() const override { return chunk_tokens_; }

 private:
  int chunk_tokens_;
};

// Tokens of a prompt with `remaining_tokens` left that fit into `budget_tokens`: all of them, or
// as many whole pages as fit, so that the next chunk begins on a page boundary. 0: none fit.
constexpr int FitChunk(int remaining_tokens, int budget_tokens, int page_size) {
  if (remaining_tokens <= budget_tokens) return remaining_tokens;
  return budget_tokens / page_size * page_size;
}

}  // namespace baton

#endif  // COMMON_CHUNKING_CHUNK_POLICY_H_
