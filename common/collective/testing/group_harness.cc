#include "common/collective/testing/group_harness.h"

#include "absl/strings/str_cat.h"

namespace baton::testing {

GroupDescription TestGroup(int rank, int size) {
  GroupDescription group = {.name = "stage 1", .epoch = 7, .rank = rank};
  for (int member = 0; member < size; ++member) group.members.push_back(absl::StrCat("m", member));
  return group;
}

}  // namespace baton::testing
