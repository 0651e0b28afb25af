#include "common/base/planted_bug.h"

#include "common/base/planted_bug_switch.h"

namespace baton {
namespace {

Bug active_bug = Bug::kNone;

}  // namespace

Bug ActiveBug() { return active_bug; }

void PlantBug(Bug bug) { active_bug = bug; }

}  // namespace baton
