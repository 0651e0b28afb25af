#include "services/simulator/run_timeline.h"

#include "absl/strings/str_cat.h"

namespace baton::simulator {

timeline::Timeline TimelineOf(const RunRecord& record) {
  timeline::Timeline drawn;
  drawn.full = record.timeline_full;
  for (size_t chain = 0; chain < record.chains.size(); ++chain) {
    const std::vector<StageRecord>& stages = record.chains[chain].stages;
    std::vector<timeline::Row>& rows = drawn.chains.emplace_back();
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      rows.push_back({absl::StrCat("chain ", chain, ", stage ", stage), stages[stage].computes});
    }
  }
  return drawn;
}

}  // namespace baton::simulator
