// Bounds that several packages check on their own side of a boundary.
#ifndef COMMON_TYPES_LIMITS_H_
#define COMMON_TYPES_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace baton {

// The longest deadline that anybody may ask for: the maximum of --request-timeout-ms.
inline constexpr int64_t kMaxTimeoutMs = 86'400'000;

// Sampling limits of one request. The router refuses more in the client's terms; a worker refuses
// more from any peer.
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxStopTokenIds = 64;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr size_t kMaxLogitBiases = 1024;
inline constexpr double kMaxLogitBias = 100;

// The most log-probabilities of a prompt that one request may ask for, alternatives included: they
// are held in memory until all are there.
inline constexpr int64_t kMaxPromptLogprobs = 1 << 19;

// What keeps the cached prefixes of different owners apart.
inline constexpr size_t kMaxCacheSaltBytes = 256;

// No page is larger: what a peer claims beyond it is refused before anything is allocated.
inline constexpr int64_t kMaxPageBytes = int64_t{1} << 40;

// How many tokens a decode service reads at a time of a text that it has retracted: whole pages.
constexpr int RereadTokens(int page_size) {
  constexpr int kTokens = 256;
  return page_size >= kTokens ? page_size : kTokens / page_size * page_size;
}

}  // namespace baton

#endif  // COMMON_TYPES_LIMITS_H_
