#include "services/links/core/hello.h"

#include "absl/strings/str_cat.h"

namespace baton::links {

std::string NameOfPlace(Role role, int stage, int stages, TensorRank rank) {
  const std::string group =
      HasStages(role, stages) ? absl::StrCat(RoleName(role), " stage ", stage) : "decode service";
  return rank.alone() ? group : absl::StrCat("rank ", rank.rank, " of ", group);
}

std::string ChainPlace::LeaderName() const {
  return HasStages(role, stages) ? "stage 0" : "rank 0";
}

std::string ChainPlace::GroupName() const {
  return role == Role::kPrefill ? "prefill chain" : "decode service";
}

}  // namespace baton::links
