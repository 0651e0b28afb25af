// The hand-off between processes that hold different parts of the model: a chain of stages with m
// tensor-parallel ranks each, and a decode service of other stages with n. One function of both
// places, BoxBetween, says which layers and heads go from the one to the other, the same on both
// sides; runs say where the bytes are in a page on both.
//
// Every decode rank gets each of its heads of a layer from exactly one prefill rank. If several
// prefill ranks hold a head (model_shard.h: more ranks than heads), the decode ranks with that head
// take turns among them, so with equal numbers of ranks each rank sends to its counterpart only.
// Rejected: the lowest rank with a head sends it to all. That is correct too, but leaves the links
// of the other ranks idle.
#ifndef COMMON_KV_HEAD_ROUTES_H_
#define COMMON_KV_HEAD_ROUTES_H_

#include <compare>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "common/types/ticket.h"

namespace baton {

struct HeadRoute {
  int source_rank = 0;
  IndexRange heads;  // In the model's numbering.
  int destination_rank = 0;
  int source_place = 0;       // Index of the first head among the source's own heads.
  int destination_place = 0;  // Index of the first head among the destination's.
  auto operator<=>(const HeadRoute&) const = default;
};

// Sorted by destination, then by heads. A source without a route to a destination writes nothing
// there and is not one of its writers. InvalidArgument names the numbers if of two ranks or heads
// neither divides the other.
absl::StatusOr<std::vector<HeadRoute>> HeadRoutes(int kv_heads, int source_ranks,
                                                  int destination_ranks);

// The ranks of one stage that have a route to any rank of a decode service, in order. Errors as
// above.
absl::StatusOr<std::vector<int>> SourcesOf(int kv_heads, int source_ranks, int destination_ranks);

// What `source` sends to `destination`: the heads that both have, or nothing if another rank with
// the same heads sends them. The numbers of ranks have been checked.
std::optional<HeadRoute> RouteBetween(int kv_heads, TensorRank source, TensorRank destination);

// A process's part of the model's KV.
struct KvPlace {
  LayerRange layers;
  TensorRank rank;
  auto operator<=>(const KvPlace&) const = default;
};

// What goes from one process to another, of every page.
struct KvBox {
  LayerRange layers;
  IndexRange heads;  // In the model's numbering.
  auto operator<=>(const KvBox&) const = default;
};

// What `source` sends to `destination`: the layers that both have, of the heads of their route.
// Over all sources whose layers are the model's, each layer and head of `destination` is in one
// box. The numbers of ranks have been checked.
std::optional<KvBox> BoxBetween(int kv_heads, const KvPlace& source, const KvPlace& destination);

// The places of a decode service with this ticket, in its order, in a model of so many layers.
std::vector<KvPlace> PlacesOf(const Ticket& ticket, int layers);

// The writers of a prompt that send something to `destination`, in their order, each with the
// layers that both have. Stages may have different numbers of ranks. The numbers of ranks have been
// checked.
std::vector<KvWriter> WritersTo(const std::vector<KvWriter>& writers, int kv_heads,
                                const KvPlace& destination);

// One process's part of a page: [layer][plane][head][token][row] of its layers and heads.
struct KvBand {
  LayerRange layers;
  int kv_heads = 0;
  size_t head_bytes = 0;  // One head in one plane of one layer: [token][row].
  int planes = 2;

  size_t PageBytes() const {
    return static_cast<size_t>(layers.size()) * static_cast<size_t>(planes * kv_heads) * head_bytes;
  }
  // The offset of a layer's own head `place` in a plane.
  size_t OffsetOf(int layer, int plane, int place) const {
    return (static_cast<size_t>(layer - layers.begin) * static_cast<size_t>(planes) +
            static_cast<size_t>(plane)) *
               static_cast<size_t>(kv_heads) * head_bytes +
           static_cast<size_t>(place) * head_bytes;
  }
};

// Bytes that are contiguous in the source's page and in the destination's.
struct PageRun {
  size_t source_offset = 0;
  size_t destination_offset = 0;
  size_t bytes = 0;
  auto operator<=>(const PageRun&) const = default;
};

// The runs of each page that a route moves, for the layers that both sides have, in the order of
// the source's bytes. Adjacent runs are merged: a page is one run if both sides have the same
// heads, and a run for each plane of each layer otherwise. Both bands are of one model and page
// size, and have the route's heads.
std::vector<PageRun> PageRuns(const HeadRoute& route, const KvBand& source,
                              const KvBand& destination);

// The part of `runs` within the source's bytes [offset, offset + bytes).
std::vector<PageRun> CutRuns(const std::vector<PageRun>& runs, size_t offset, size_t bytes);

// The runs, in a page of `held`, of the bytes [offset, offset + bytes) of a message's part of each
// page, in the message's order (source_offset counts in the message). A message has
// [layer][plane][head][token][row] of `layers` and of the model's heads `heads`. `held` has them
// all; its first head is `held_head_begin` of the model's. A sender gathers by these runs, and a
// receiver scatters.
std::vector<PageRun> MessageRuns(LayerRange layers, IndexRange heads, const KvBand& held,
                                 int held_head_begin, size_t offset, size_t bytes);

}  // namespace baton

#endif  // COMMON_KV_HEAD_ROUTES_H_
