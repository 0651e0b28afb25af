// The switch of the planted bugs, for tests alone (its target is testonly).
#ifndef COMMON_BASE_PLANTED_BUG_SWITCH_H_
#define COMMON_BASE_PLANTED_BUG_SWITCH_H_

#include "common/base/planted_bug.h"

namespace baton {

// Turns `bug` on, and the one before it off; kNone turns all off. Not for use while a core runs in
// another thread.
void PlantBug(Bug bug);

}  // namespace baton

#endif  // COMMON_BASE_PLANTED_BUG_SWITCH_H_
