#include "services/decode/core/writers.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"

namespace baton::decode {
namespace {

// Checks that one stage's writers are exactly its ranks with something to write, each once.
absl::Status CheckSources(std::span<const KvWriter> stage, int kv_heads, int decode_ranks) {
  const int ranks = stage[0].tensor_rank.size;
  const absl::StatusOr<std::vector<int>> sources = SourcesOf(kv_heads, ranks, decode_ranks);
  if (!sources.ok()) {
    return InvalidField("writers", absl::StrCat("of ", stage[0].instance.id,
                                                "'s stage: ", sources.status().message()));
  }
  std::vector<int> named;
  for (const KvWriter& writer : stage) {
    if (writer.tensor_rank.size != ranks) {
      return InvalidField("writers", absl::StrCat(stage[0].instance.id, " is one of ", ranks,
                                                  " ranks, ", writer.instance.id, " of the same ",
                                                  "layers one of ", writer.tensor_rank.size));
    }
    named.push_back(writer.tensor_rank.rank);
  }
  std::sort(named.begin(), named.end());
  if (named == *sources) return absl::OkStatus();
  return InvalidField(
      "writers",
      absl::StrCat("of layers [", stage[0].layers.begin, ", ", stage[0].layers.end, ") are ranks ",
                   absl::StrJoin(named, ", "), " of ", ranks, "; each of ", kv_heads,
                   " KV heads is written once by ranks ", absl::StrJoin(*sources, ", ")));
}

}  // namespace

absl::Status CheckWriters(const std::vector<KvWriter>& writers, int layers, int kv_heads,
                          int ranks) {
  for (const KvWriter& writer : writers) {
    if (writer.instance.id.empty() || writer.instance.incarnation == 0) {
      return InvalidField("writers", "an instance without a name or incarnation");
    }
  }
  std::vector<KvWriter> sorted = writers;
  std::ranges::stable_sort(sorted, {}, &KvWriter::layers);
  int covered = 0;
  for (auto begin = sorted.cbegin(); begin != sorted.cend();) {
    const LayerRange of = begin->layers;
    if (of.begin != covered || of.end <= of.begin) {
      return InvalidField("writers",
                          absl::StrCat("layers [", of.begin, ", ", of.end, ") follow those up to ",
                                       covered, ": every layer needs exactly one stage"));
    }
    const auto end = std::find_if(begin, sorted.cend(),
                                  [of](const KvWriter& writer) { return writer.layers != of; });
    BATON_RETURN_IF_ERROR(CheckSources(std::span(begin, end), kv_heads, ranks));
    covered = of.end;
    begin = end;
  }
  if (covered == layers) return absl::OkStatus();
  return InvalidField("writers", absl::StrCat("cover ", covered, " of ", layers, " layers"));
}

}  // namespace baton::decode
