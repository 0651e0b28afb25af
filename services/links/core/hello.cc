#include "services/links/core/hello.h"

#include "absl/strings/str_cat.h"

namespace baton::links {

std::string NameOfPlace(Role role, int stage, int stages, TensorRank rank) {
  const bool whole = role == Role::kDecode && stages <= 1;
  const std::string group =
      whole ? "decode service" : absl::StrCat(RoleName(role), " stage ", stage);
  return rank.alone() ? group : absl::StrCat("rank ", rank.rank, " of ", group);
}

std::string ChainPlace::LeaderName() const {
  return role == Role::kDecode && stages == 1 ? "rank 0" : "stage 0";
}

std::string ChainPlace::GroupName() const {
  return role == Role::kPrefill ? "prefill chain" : "decode service";
}

}  // namespace baton::links
