#include "common/kv/head_routes.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton {
namespace {

absl::Status CheckRanks(int kv_heads, int ranks, const char* whose) {
  if (kv_heads > 0 && ranks > 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(ranks, " ", whose, " ranks can't share ", kv_heads,
                                                 " KV heads: neither divides the other"));
}

// The source that sends `head` to `destination`. On both sides the ranks with a copy of a head are
// adjacent. The destination's position among the head's copies selects the source at the
// corresponding position.
int SourceOf(int head, int kv_heads, int sources, TensorRank destination) {
  const int copies = std::max(1, destination.size / kv_heads);  // The copies of each head.
  const int copy = destination.rank % copies;
  return (head * copies + copy) * sources / (kv_heads * copies);
}

}  // namespace

absl::StatusOr<std::vector<HeadRoute>> HeadRoutes(int kv_heads, int source_ranks,
                                                  int destination_ranks) {
  BATON_RETURN_IF_ERROR(CheckRanks(kv_heads, source_ranks, "prefill"));
  BATON_RETURN_IF_ERROR(CheckRanks(kv_heads, destination_ranks, "decode"));
  std::vector<HeadRoute> routes;
  for (int rank = 0; rank < destination_ranks; ++rank) {
    const TensorRank destination{rank, destination_ranks};
    const IndexRange wanted = KvHeadsOf(kv_heads, destination);
    for (int head = wanted.begin; head < wanted.end;) {
      const int source = SourceOf(head, kv_heads, source_ranks, destination);
      const IndexRange held = KvHeadsOf(kv_heads, {source, source_ranks});
      BATON_CHECK(held.Contains(head)) << "head " << head << " of prefill rank " << source;
      const int end = std::min(wanted.end, held.end);
      routes.push_back({source, {head, end}, rank, head - held.begin, head - wanted.begin});
      head = end;
    }
  }
  return routes;
}

absl::StatusOr<std::vector<int>> SourcesOf(int kv_heads, int source_ranks, int destination_ranks) {
  BATON_ASSIGN_OR_RETURN(const std::vector<HeadRoute> routes,
                         HeadRoutes(kv_heads, source_ranks, destination_ranks));
  std::set<int> sources;
  for (const HeadRoute& route : routes) sources.insert(route.source_rank);
  return std::vector<int>(sources.begin(), sources.end());
}

// At most one, since a rank's heads are adjacent on both sides.
std::optional<HeadRoute> RouteBetween(int kv_heads, TensorRank source, TensorRank destination) {
  const auto routes = HeadRoutes(kv_heads, source.size, destination.size);
  BATON_CHECK(routes.ok()) << routes.status();
  for (const HeadRoute& route : *routes) {
    if (route.source_rank == source.rank && route.destination_rank == destination.rank) {
      return route;
    }
  }
  return std::nullopt;
}

std::optional<KvBox> BoxBetween(int kv_heads, const KvPlace& source, const KvPlace& destination) {
  const LayerRange layers{std::max(source.layers.begin, destination.layers.begin),
                          std::min(source.layers.end, destination.layers.end)};
  if (layers.begin >= layers.end) return std::nullopt;
  const auto route = RouteBetween(kv_heads, source.rank, destination.rank);
  if (!route.has_value()) return std::nullopt;
  return KvBox{layers, route->heads};
}

std::vector<KvPlace> PlacesOf(const Ticket& ticket, int layers) {
  std::vector<KvPlace> places;
  const int ranks = ticket.ranks();
  for (int place = 0; place < ticket.places(); ++place) {
    const auto stage = static_cast<size_t>(place / ranks);
    places.push_back({ticket.stages.empty() ? LayerRange{0, layers} : ticket.stages[stage],
                      {place % ranks, ranks}});
  }
  return places;
}

std::vector<KvWriter> WritersTo(const std::vector<KvWriter>& writers, int kv_heads,
                                const KvPlace& destination) {
  std::vector<KvWriter> sending;
  for (const KvWriter& writer : writers) {
    const auto box = BoxBetween(kv_heads, {writer.layers, writer.tensor_rank}, destination);
    if (box.has_value()) sending.push_back({writer.instance, box->layers, writer.tensor_rank});
  }
  return sending;
}

std::vector<PageRun> PageRuns(const HeadRoute& route, const KvBand& source,
                              const KvBand& destination) {
  BATON_CHECK(source.head_bytes == destination.head_bytes && source.planes == destination.planes)
      << source.planes << " planes of " << source.head_bytes << " bytes a head and "
      << destination.planes << " of " << destination.head_bytes;
  const size_t bytes = static_cast<size_t>(route.heads.size()) * source.head_bytes;
  std::vector<PageRun> runs;
  const int layer_end = std::min(source.layers.end, destination.layers.end);
  for (int layer = std::max(source.layers.begin, destination.layers.begin); layer < layer_end;
       ++layer) {
    for (int plane = 0; plane < source.planes; ++plane) {
      const PageRun run = {source.OffsetOf(layer, plane, route.source_place),
                           destination.OffsetOf(layer, plane, route.destination_place), bytes};
      if (!runs.empty()) {
        PageRun& last = runs.back();
        if (last.source_offset + last.bytes == run.source_offset &&
            last.destination_offset + last.bytes == run.destination_offset) {
          last.bytes += run.bytes;
          continue;
        }
      }
      runs.push_back(run);
    }
  }
  return runs;
}

std::vector<PageRun> CutRuns(const std::vector<PageRun>& runs, size_t offset, size_t bytes) {
  std::vector<PageRun> cut;
  for (const PageRun& run : runs) {
    const size_t begin = std::max(run.source_offset, offset);
    const size_t end = std::min(run.source_offset + run.bytes, offset + bytes);
    if (begin >= end) continue;
    cut.push_back({begin, run.destination_offset + (begin - run.source_offset), end - begin});
  }
  return cut;
}

std::vector<PageRun> MessageRuns(LayerRange layers, IndexRange heads, const KvBand& held,
                                 int held_head_begin, size_t offset, size_t bytes) {
  const HeadRoute route{.heads = heads, .destination_place = heads.begin - held_head_begin};
  BATON_CHECK(route.destination_place >= 0 &&
              route.destination_place + heads.size() <= held.kv_heads)
      << "heads [" << heads.begin << ", " << heads.end << ") of " << held.kv_heads << " from "
      << held_head_begin << " on";
  return CutRuns(PageRuns(route, {layers, heads.size(), held.head_bytes, held.planes}, held),
                 offset, bytes);
}

}  // namespace baton
