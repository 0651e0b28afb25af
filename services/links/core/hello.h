// A chain's members, and what its stages agree on for one epoch. The ranks of a decode service are
// linked like a chain of one stage with the service's id.
#ifndef SERVICES_LINKS_CORE_HELLO_H_
#define SERVICES_LINKS_CORE_HELLO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/role.h"
#include "common/types/ticket.h"

namespace baton::links {

// A member, as messages write it: "rank 1 of prefill stage 2".
std::string NameOfPlace(Role role, int stage, TensorRank rank);

// One process's place in a chain: a stage, or a rank of one. The members of a chain are counted
// stage by stage, each one's ranks in order; the first, which plans, is member 0.
struct ChainPlace {
  std::string chain_id;
  int stage = 0;
  int stages = 1;
  int layers = 0;  // In the whole model.
  KvWriter self;
  Role role = Role::kPrefill;

  int ranks() const { return self.tensor_rank.size; }  // In each stage.
  int rank() const { return self.tensor_rank.rank; }
  int members() const { return stages * ranks(); }
  int member() const { return stage * ranks() + rank(); }
  int StageOf(int of_member) const { return of_member / ranks(); }
  int RankOf(int of_member) const { return of_member % ranks(); }
  // As messages write it: the one that links all others.
  std::string LeaderName() const;
  std::string GroupName() const;
};

// Epochs are microseconds of some wall clock or what follows another epoch; beyond this there is
// nothing to follow.
inline constexpr uint64_t kMaxEpoch = uint64_t{1} << 62;

// Opens an epoch.
struct Hello {
  uint64_t epoch = 0;  // 1 .. kMaxEpoch
  std::vector<KvWriter> members;
  int max_plan_tokens = 0;
  int activation_credits = 0;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_HELLO_H_
