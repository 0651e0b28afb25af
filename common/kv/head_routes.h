// The hand-off between processes that hold different heads: prefill stages of m tensor-parallel
// ranks and a decode service of n. A table says which rank sends which KV heads to which, once for
// each pair of groups; runs say where the bytes lie in a page on both sides.
//
// Every decode rank gets each of its heads from exactly one prefill rank of each stage. Heads that
// several prefill ranks hold (model_shard.h: more ranks than heads) are dealt out: the copies on
// the decode side take turns among those on the prefill side, so equal numbers of ranks send to
// their counterparts alone. Rejected: the lowest rank that has a head sends it to all, which is as
// right and leaves the others' links idle.
#ifndef COMMON_KV_HEAD_ROUTES_H_
#define COMMON_KV_HEAD_ROUTES_H_

#include <compare>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/kv_layout.h"
#include "common/types/tensor_rank.h"
#include "common/types/ticket.h"

namespace baton {

struct HeadRoute {
  int source_rank = 0;
  IndexRange heads;  // Of the model's.
  int destination_rank = 0;
  int source_place = 0;       // Of the first head among the source's own,
  int destination_place = 0;  // and among the destination's.
  auto operator<=>(const HeadRoute&) const = default;
};

// By destination and within it by heads. A source that has no route to a destination writes nothing
// there and is none of its writers. InvalidArgument, naming the numbers, for ranks and heads of
// which neither divides the other.
absl::StatusOr<std::vector<HeadRoute>> HeadRoutes(int kv_heads, int source_ranks,
                                                  int destination_ranks);

// Of one stage's ranks, those that have a route to any of a decode service's, in order. Errors as
// above.
absl::StatusOr<std::vector<int>> SourcesOf(int kv_heads, int source_ranks, int destination_ranks);

// What `source` sends to `destination`, if it sends anything: their heads in common, or none where
// another rank with the same heads does. The numbers of ranks have been checked.
std::optional<HeadRoute> RouteBetween(int kv_heads, TensorRank source, TensorRank destination);

// Of a ticket's writers, of however many stages and each of its own number of ranks, those with a
// route to `destination`, in their order. The numbers of ranks have been checked.
std::vector<KvWriter> WritersTo(const std::vector<KvWriter>& writers, int kv_heads,
                                TensorRank destination);

// The KV of a page as one process has it: [layer][K/V][head][token][dim] of its layers and heads.
struct KvBand {
  LayerRange layers;
  int kv_heads = 0;
  size_t head_bytes = 0;  // Of one head's keys (or values) of one layer: [token][dim].

  size_t PageBytes() const {
    return static_cast<size_t>(layers.size()) * 2 * static_cast<size_t>(kv_heads) * head_bytes;
  }
  // Where the keys (value 0) or values (1) of a layer's own head `place` begin.
  size_t OffsetOf(int layer, int value, int place) const {
    return (static_cast<size_t>(layer - layers.begin) * 2 + static_cast<size_t>(value)) *
               static_cast<size_t>(kv_heads) * head_bytes +
           static_cast<size_t>(place) * head_bytes;
  }
};

// Bytes that lie together in the source's page and in the destination's.
struct PageRun {
  size_t source_offset = 0;
  size_t destination_offset = 0;
  size_t bytes = 0;
  auto operator<=>(const PageRun&) const = default;
};

// What a route moves of each page, of the layers that both have, in the order of the source's
// bytes; neighbours are one run. So a page is one run where both have the same heads, and two a
// layer otherwise. Both bands are of one model and page size; the route's heads are both's.
std::vector<PageRun> PageRuns(const HeadRoute& route, const KvBand& source,
                              const KvBand& destination);

// The part of `runs` that lies in the source's bytes [offset, offset + bytes).
std::vector<PageRun> CutRuns(const std::vector<PageRun>& runs, size_t offset, size_t bytes);

// Where bytes [offset, offset + bytes) of what a message has of each page lie in a page of `held`,
// in the message's order (source_offset counts in the message). A message has
// [layer][K/V][head][token][dim] of `layers` and of the model's heads `heads`; both are `held`'s,
// whose first head is `held_head_begin` of the model's. So a sender gathers, and a receiver
// scatters.
std::vector<PageRun> MessageRuns(LayerRange layers, IndexRange heads, const KvBand& held,
                                 int held_head_begin, size_t offset, size_t bytes);

}  // namespace baton

#endif  // COMMON_KV_HEAD_ROUTES_H_
