// How far the start of several processes has come, for people: a line whenever a count has changed.
// Pure.
#ifndef SERVICES_BATON_START_PROGRESS_H_
#define SERVICES_BATON_START_PROGRESS_H_

#include <functional>
#include <string>
#include <vector>

namespace baton {

// Processes that are counted together.
struct StartingGroup {
  std::string name;                // "chain-0", "decode"
  std::string unit;                // What they are: "ranks", "stages", "services".
  std::vector<std::string> names;  // One for each.
};

enum class StartState {
  kAbsent,
  kHere,  // Not ready yet: it waits for others.
  kReady,
};

class StartProgress {
 public:
  // `begin` begins every line. `here`: what those are that are kHere, "registered".
  StartProgress(std::string begin, std::string here, std::vector<StartingGroup> groups);

  // "cluster starting: chain-0: 2 of 4 ranks ready, 3 registered; decode: 1 of 1 services ready";
  // empty if it would repeat the last note, and while no worker is there.
  std::string Note(const std::function<StartState(const std::string& name)>& state_of);

 private:
  const std::string begin_;
  const std::string here_;
  const std::vector<StartingGroup> groups_;
  std::string said_;
};

}  // namespace baton

#endif  // SERVICES_BATON_START_PROGRESS_H_
