// Names for parties, ranges and promises that the hand-off and the chain share. Plain values.
#ifndef COMMON_KV_TYPES_H_
#define COMMON_KV_TYPES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton {

// Version of all that workers say to one another: proto/ and the data plane's headers. Workers of
// different versions are refused at join.
inline constexpr uint32_t kProtocolVersion = 1;

// One life of one process: a restart keeps `id` and draws a new `incarnation` (never 0).
struct InstanceRef {
  std::string id;
  uint64_t incarnation = 0;
  auto operator<=>(const InstanceRef&) const = default;
};

// Layers [begin, end) of the model.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  auto operator<=>(const LayerRange&) const = default;
};

// The KV of one page: [layer][K/V][head][token][dim], so that one stage's layers are one run.
struct KvLayout {
  int layers = 0;  // Of the whole model.
  int kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // Tokens.
  int bytes_per_element = 4;

  // Bytes of one layer of one page, K and V together.
  size_t BytesPerLayer() const {
    return size_t{2} * static_cast<size_t>(kv_heads) * static_cast<size_t>(page_size) *
           static_cast<size_t>(head_dim) * static_cast<size_t>(bytes_per_element);
  }
  // Bytes of `range`'s layers of one page.
  size_t BandBytes(LayerRange range) const {
    return BytesPerLayer() * static_cast<size_t>(range.size());
  }
  int PagesFor(int tokens) const { return (tokens + page_size - 1) / page_size; }
  auto operator<=>(const KvLayout&) const = default;
};

// A stage that writes `layers` of a request's KV.
struct KvWriter {
  InstanceRef instance;
  LayerRange layers;
  auto operator<=>(const KvWriter&) const = default;
};

// Decode's promise of pages to one attempt at one request. Writers name (slot, generation) and page
// indices within the prompt, never addresses nor the decode's own page ids.
struct Ticket {
  InstanceRef decode;
  uint32_t slot = 0;
  uint64_t generation = 0;  // Never 0, never reused within an incarnation.
  int prompt_tokens = 0;
  int prompt_pages = 0;
  auto operator<=>(const Ticket&) const = default;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  auto operator<=>(const TokenLogprob&) const = default;
};

// A sampled token with what the client asked to know of its distribution.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;              // Natural logarithm; valid whether or not it was asked for.
  std::vector<TokenLogprob> top;  // Most likely first; empty unless asked for.
  auto operator<=>(const SampledToken&) const = default;
};

}  // namespace baton

#endif  // COMMON_KV_TYPES_H_
