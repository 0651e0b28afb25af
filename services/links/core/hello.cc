#include "services/links/core/hello.h"

#include "absl/strings/str_cat.h"

namespace baton::links {

std::string NameOfPlace(Role role, int stage, TensorRank rank) {
  const std::string group =
      role == Role::kPrefill ? absl::StrCat("prefill stage ", stage) : "decode service";
  return rank.alone() ? group : absl::StrCat("rank ", rank.rank, " of ", group);
}

std::string ChainPlace::LeaderName() const { return role == Role::kPrefill ? "stage 0" : "rank 0"; }

std::string ChainPlace::GroupName() const {
  return role == Role::kPrefill ? "prefill chain" : "decode service";
}

}  // namespace baton::links
