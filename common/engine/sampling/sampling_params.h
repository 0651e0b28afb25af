// What a draw is made from besides logits: a request's parameters, its tokens so far, its seed and
// the position. TokenSampler makes it of v1::SamplingParams, which are what clients and peers send.
#ifndef COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
#define COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/sampling/constraints.h"
#include "common/engine/sampling/reasoning_meter.h"
#include "common/grammar/constraint.h"

namespace baton {

struct SamplingParams {
  // Logits are changed in this order: bias, repetition, frequency, presence.
  std::vector<std::pair<int32_t, float>> logit_bias;  // Added; each token once.
  // For every token of the prompt and the continuation: divides a positive logit, multiplies a
  // negative one.
  double repetition_penalty = 1;  // In (0, 2].
  // Subtracted from the logits of the continuation's tokens: the first for each occurrence, the
  // second once.
  double frequency_penalty = 0;  // In [-2, 2].
  double presence_penalty = 0;   // In [-2, 2].

  double temperature = 1;  // 0 is greedy: the most probable token, the lowest id among equals.
  int top_k = 0;           // Keep the k most probable tokens; 0 keeps all.
  double top_p = 1;        // Keep the fewest of these whose probabilities sum to top_p. In (0, 1].
  double min_p = 0;        // Keep those of these at least min_p times as probable as the best.

  // Token ids that would end the request are not drawn until so many tokens exist.
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;  // Eos ids are ordinary tokens.

  bool logprobs = false;  // Report the drawn token's log-probability.
  int top_logprobs = 0;   // How many of the most probable tokens to report too; needs logprobs.

  // What the text must be; null: anything.
  std::shared_ptr<const PendingConstraint> constraint;
  std::optional<int> reasoning_budget;  // Tokens of reasoning; `constraint` then says how it ends.

  // Whether the draw depends on earlier tokens, and whether on those of the prompt.
  bool NeedsHistory() const { return constraint != nullptr || HasPenalties(); }
  bool HasPenalties() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  bool NeedsPrompt() const { return repetition_penalty != 1; }
};

// Whether drawing `token` ends the request.
bool EndsGeneration(const SamplingParams& params, int32_t token);

// The tokens of one request that penalties look at, and where its text stands in what it must be.
// One thread at a time.
class TokenHistory {
 public:
  // The prompt's tokens, in any order; only repetition_penalty uses them.
  void SetPrompt(std::span<const int32_t> tokens);
  // The next token of the continuation.
  void Add(int32_t token) { ++counts_[token]; }

  // The first call comes before the first token, or with the text's first token. `token`: the
  // text's next one; nullopt: there is none yet.
  void Follow(const SamplingParams& params, std::optional<int32_t> token);
  // What may come next; null: anything. FAILED_PRECONDITION, or as grammar::Constraint::MaskOf, if
  // that can't be told.
  absl::StatusOr<std::shared_ptr<const grammar::TokenMask>> NextMask();
  // Once Follow has been called and NextMask can tell.
  const grammar::Vocabulary& vocabulary() const { return *rules_->vocabulary; }

  // Distinct tokens of the prompt, ascending.
  const std::vector<int32_t>& prompt() const { return prompt_; }
  bool InPrompt(int32_t token) const;
  // How often each token is in the continuation.
  const std::unordered_map<int32_t, int>& counts() const { return counts_; }

 private:
  std::vector<int32_t> prompt_;
  std::unordered_map<int32_t, int> counts_;
  absl::Status Begin(const SamplingParams& params);
  void EndReasoning();

  std::shared_ptr<const TextRules> rules_;                 // Null until the first Follow.
  std::shared_ptr<const grammar::Constraint> constraint_;  // Holds now; null: none does.
  std::optional<ReasoningMeter> reasoning_;                // While it may have to be ended.
  int reasoning_budget_ = 0;
  grammar::TextState text_;
  bool text_ended_ = false;  // Tokens of its end have been drawn.
  absl::Status text_status_;
};

// How the token after a sequence's last one is drawn.
struct Draw {
  const SamplingParams* params = nullptr;  // Within their ranges (check_sampling.h).
  uint64_t seed = 0;
  // The number of tokens that the request has generated before this one. The draw is a function of
  // (seed, position), so other requests and the process that draws don't affect it.
  int position = 0;
  // The tokens that penalties look at; null if params->NeedsHistory() is false. The executor owns
  // it from Submit to the step's end. If position is positive, the executor first adds the
  // sequence's one token, the latest of the continuation, or all of `resumed`. So every token is
  // added once if every step draws.
  TokenHistory* history = nullptr;
  // The prompt, for `history`, before a request's first draw. Empty if `history` has it or if
  // params->NeedsPrompt() is false.
  std::span<const int32_t> prompt;
  // A request that goes on later, or on another worker: its continuation so far, `position` tokens,
  // which are the last ones that the sequence has read. Empty for one that has not stopped.
  std::span<const int32_t> resumed;
};

// A draw that depends on nothing but the row of logits, ready for a device: tokens' weights are
// kernels.h's, in fixed point.
struct RowDraw {
  float scale = 0;            // As KernelTable::weigh has it: log2(e) / temperature. 0: greedy.
  int top_k = 0;              // As SamplingParams; 0 keeps all.
  double top_p = 1;           // As SamplingParams.
  uint32_t least_weight = 0;  // The least that min_p keeps.
  double uniform = 0;         // In [0, 1): where in the weight that is kept.
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
