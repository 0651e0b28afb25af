// A token with what was asked about its distribution.
#ifndef COMMON_TYPES_SAMPLED_TOKEN_H_
#define COMMON_TYPES_SAMPLED_TOKEN_H_

#include <compare>
#include <cstdint>
#include <vector>

namespace baton {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  auto operator<=>(const TokenLogprob&) const = default;
};

// A sampled token with what the client asked to know of its distribution.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;  // Natural logarithm; 0 if it was not asked for and a device drew the token.
  std::vector<TokenLogprob> top;  // Most likely first; empty unless asked for.
  auto operator<=>(const SampledToken&) const = default;
};

// Why a complete answer ended. A failure is a status, not a reason.
enum class FinishReason : uint8_t {
  kStop,    // End of sequence, a stop id or a stop string.
  kLength,  // max_tokens or the context length.
  kAbort,   // The client's wish; the router's word alone: a decode service never ends so.
};

}  // namespace baton

#endif  // COMMON_TYPES_SAMPLED_TOKEN_H_
