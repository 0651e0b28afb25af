// Every check of a client's request, for both fronts, so that they refuse the same things in the
// same words. Pure functions; errors name the field (FieldOf) as the client called it.
#ifndef SERVICES_ROUTER_VALIDATE_H_
#define SERVICES_ROUTER_VALIDATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/generation_defaults.h"
#include "proto/baton/v1/common.pb.h"
#include "services/router/core/context_overflow.h"
#include "services/router/gateway.h"

namespace baton::router {

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxChatMessages = 4096;

struct RequestLimits {
  std::string served_model_name;
  int vocab_size = 0;
  int max_context_tokens = 0;  // Prompt and continuation.
  size_t longest_token_bytes = 0;
  // For requests without max_tokens: --default-max-tokens, or else generation_config.json's
  // max_new_tokens; 0: as many as the context and the KV caches have room for.
  int default_max_tokens = 0;
  GenerationDefaults defaults;  // For sampling; OpenAI's apply where unset.
  // Ids that end a text in the place of those that the workers know; empty: those.
  std::vector<int32_t> end_ids;
  int64_t request_timeout_ms = 0;

  // A longer text cannot fit into the context whatever its tokens are: it is refused before it is
  // tokenized.
  size_t max_text_bytes() const {
    return static_cast<size_t>(max_context_tokens) * longest_token_bytes;
  }
};

// All that can be said before tokenizing: types, ranges, UTF-8, ids, names, sizes.
absl::Status CheckCall(const GenerateCall& call, const RequestLimits& limits);

// NOT_FOUND with field "model" for a name other than `served`; an empty one is the served model's.
absl::Status CheckModelName(const std::string& model, const std::string& served);

// UTF-8 and size of a text that is about to be tokenized.
absl::Status CheckText(const std::string& field, const std::string& text,
                       const RequestLimits& limits);

// After tokenizing: the prompt and, if max_tokens was given, as many new tokens must fit into the
// context; the error names both numbers. A default that does not fit is clipped instead.
absl::Status CheckContext(const GenerateCall& call, size_t prompt_tokens,
                          const RequestLimits& limits);

// After tokenizing: no more log-probabilities of the prompt than a chain tells
// (kMaxPromptLogprobs).
absl::Status CheckPromptLogprobs(const GenerateCall& call, size_t prompt_tokens);

// Drops tokens from the prompt's beginning as truncate_prompt_tokens says.
void TruncatePrompt(const GenerateCall& call, const RequestLimits& limits,
                    std::vector<int32_t>& ids);

// What to tell a client that left max_tokens out and whose text ended at its default; empty: the
// default was the end of the context.
std::string DefaultNote(const GenerateCall& call, size_t prompt_tokens,
                        const RequestLimits& limits);

// Complete parameters for the legs: defaults filled in, max_tokens bounded by the context, the seed
// drawn as `random_seed` if the client gave none. It is fixed here, once, so that a retry on
// another pair gives the same text. `sampling` has passed CheckCall.
v1::SamplingParams ResolveSampling(v1::SamplingParams sampling, int prompt_tokens,
                                   uint64_t random_seed, const RequestLimits& limits);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_VALIDATE_H_
