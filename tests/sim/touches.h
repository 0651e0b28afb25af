// Who has touched what: for every client, attempt, generation and page the last actions of the
// cores that named it. When a promise breaks, the trace ends with those of whatever the violation
// names, and of what these name in turn. Kept in traced runs alone.
#ifndef TESTS_SIM_TOUCHES_H_
#define TESTS_SIM_TOUCHES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "services/prefill/core/chain_planner.h"
#include "services/router/core/router_core.h"

namespace baton::sim {

class Touches {
 public:
  // `subject` is as violations name it: "attempt 7", "decode-2 page 12".
  void Add(const std::string& subject, const std::string& line);
  // Lines about what `text` names, and about what those lines name.
  std::vector<std::string> About(const std::string& text) const;

 private:
  struct Touch {
    uint64_t order = 0;
    std::string line;
  };
  std::vector<std::string> SubjectsIn(const std::string& text) const;

  uint64_t order_ = 0;
  std::map<std::string, std::deque<Touch>> touches_;
};

class World;
void TouchBy(World& world, int node, const router::Action& action);
void TouchBy(World& world, int node, const prefill::PlannerAction& action);

}  // namespace baton::sim

#endif  // TESTS_SIM_TOUCHES_H_
