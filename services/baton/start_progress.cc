#include "services/baton/start_progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {

StartProgress::StartProgress(std::string begin, std::string here, std::vector<StartingGroup> groups)
    : begin_(std::move(begin)), here_(std::move(here)), groups_(std::move(groups)) {}

std::string StartProgress::Note(
    const std::function<StartState(const std::string& name)>& state_of) {
  std::vector<std::string> counts;
  bool anybody = !said_.empty();
  for (const StartingGroup& group : groups_) {
    int here = 0;
    int ready = 0;
    for (const std::string& name : group.names) {
      const StartState state = state_of(name);
      if (state != StartState::kAbsent) ++here;
      if (state == StartState::kReady) ++ready;
    }
    anybody = anybody || here > 0;
    counts.push_back(absl::StrCat(group.name, ": ", ready, " of ", group.names.size(), " ",
                                  group.unit, " ready",
                                  here > ready ? absl::StrCat(", ", here, " ", here_) : ""));
  }
  std::string line = absl::StrCat(begin_, ": ", absl::StrJoin(counts, "; "));
  if (!anybody || line == said_) return "";
  said_ = line;
  return line;
}

}  // namespace baton
