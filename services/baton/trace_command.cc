// `baton trace`: the timeline of a real run, from the spans that its stages wrote.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/baton/commands.h"
#include "services/timeline/span_file.h"
#include "services/timeline/timeline.h"

namespace baton {
namespace {

size_t ChunksOf(const timeline::Timeline& drawn) {
  size_t chunks = 0;
  for (const auto& chain : drawn.chains) {
    for (const timeline::Row& row : chain) {
      for (const timeline::ComputeRecord& compute : row.computes) chunks += compute.items.size();
    }
  }
  return chunks;
}

absl::Status Draw(const v1::Options& options) {
  const std::string& path = options.otlp_traces_file();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const timeline::TimelineWindow window =
      timeline::WindowOfMs(options.timeline_from_ms(), options.timeline_ms());
  BATON_ASSIGN_OR_RETURN(const timeline::SpanRun run, timeline::ReadSpans(file, path, window));
  const std::string begins = UtcText(run.begin_us);
  const std::string title =
      absl::StrCat(path, ": ", run.requests, run.requests == 1 ? " request" : " requests",
                   ", the first chunk at ", begins);
  const std::string svg = timeline::TimelineSvg(run.timeline, window, title);
  BATON_RETURN_IF_ERROR(WriteOutput(options.svg(), svg));
  std::printf("%s: %zu chunks of %d %s on %zu %s, of %lld spans; 0 ms is %s\n",
              options.svg().c_str(), ChunksOf(run.timeline), run.requests,
              run.requests == 1 ? "request" : "requests", run.timeline.chains.size(),
              run.timeline.chains.size() == 1 ? "chain" : "chains",
              static_cast<long long>(run.spans), begins.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTraceCommand(const config::ParsedOptions& options) { return Draw(options.values); }

}  // namespace baton
