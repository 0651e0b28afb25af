// A chain's members, and what its stages agree on for one epoch. A decode service is linked like a
// chain with the service's id.
#ifndef SERVICES_LINKS_CORE_HELLO_H_
#define SERVICES_LINKS_CORE_HELLO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/instance.h"
#include "common/types/ticket.h"

namespace baton::links {

// Whether a member's stage says something: a decode service of one stage counts ranks alone.
inline bool HasStages(Role role, int stages) { return role == Role::kPrefill || stages > 1; }

// A member, as messages write it: "rank 1 of prefill stage 2", "decode stage 1"; of a decode
// service of one stage "rank 1 of decode service".
std::string NameOfPlace(Role role, int stage, int stages, TensorRank rank);

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

// How patient the stages of a chain are with one another. Every stage of a chain has the same.
struct ChainTimes {
  int64_t ping_us = 500'000;
  int64_t silence_us = 3'000'000;         // That ends a link: several pings.
  int64_t linking_limit_us = 10'000'000;  // For stage 0: until every stage is ready.
  int64_t begin_limit_us = 8'000'000;     // For a later stage: less than stage 0 waits for it.
  int64_t begin_again_us = 20'000;        // Between its tries.
  int64_t first_backoff_us = 50'000;      // Stage 0's, before it wires anew.
  int64_t longest_backoff_us = 2'000'000;
  int64_t stable_us = 10'000'000;  // A chain that was up for so long has not failed again.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_HELLO_H_
