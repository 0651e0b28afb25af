// Who speaks: one life of one process, and the version of what it says.
#ifndef COMMON_TYPES_INSTANCE_H_
#define COMMON_TYPES_INSTANCE_H_

#include <compare>
#include <cstdint>
#include <string>

namespace baton {

// Version of all that processes say to one another: proto/ and the data plane's headers. A process
// speaks a range of them, and two of them the newest that both do; workers whose ranges don't meet
// are refused at join. A new version first comes with both in the range, and the old one goes a
// release later, so that a cluster can be upgraded process by process.
inline constexpr uint32_t kOldestProtocolVersion = 2;
inline constexpr uint32_t kProtocolVersion = 11;
static_assert(kOldestProtocolVersion <= kProtocolVersion);
// The first in which Prefill.Start reads fixed_prompt_token_ids.
inline constexpr uint32_t kFixedPromptIdsVersion = 3;
// The first in which a checksum of activations may follow them.
inline constexpr uint32_t kActivationSumsVersion = 4;
// The first whose stages open prompts with cached tokens.
inline constexpr uint32_t kCachedTokensVersion = 5;
// The first whose stages give a request more pages while it decodes, and open retracted ones.
inline constexpr uint32_t kGrowthVersion = 6;
// The first whose workers keep texts to SamplingParams.structure; older ones ignore it.
inline constexpr uint32_t kStructureVersion = 6;
// The first in which a decode service keeps prompts' KV, and stages send from Ticket.first_page on.
inline constexpr uint32_t kFirstPageVersion = 7;
// The first whose workers keep reasoning to TextStructure.reasoning_budget.
inline constexpr uint32_t kReasoningBudgetVersion = 7;
// The first whose workers go on with a text that others began (SamplingParams.drawn_tokens).
inline constexpr uint32_t kResumeVersion = 7;
// The first whose last stages answer CompileStructure.
inline constexpr uint32_t kCompileVersion = 8;
// The first whose decode services, and all ranks of one, compute by plans.
inline constexpr uint32_t kDecodePlansVersion = 9;
// The first whose chains hand KV over to decode services of several stages (Ticket.stages).
inline constexpr uint32_t kDecodeStagesVersion = 10;
// The first whose workers hear of their own chain or decode service alone, and look others up.
inline constexpr uint32_t kLookUpVersion = 11;

// One life of one process: a restart keeps `id` and draws a new `incarnation` (never 0).
struct InstanceRef {
  std::string id;
  uint64_t incarnation = 0;
  auto operator<=>(const InstanceRef&) const = default;
};

// The two kinds of worker; also the two legs of a request.
enum class Role : uint8_t { kPrefill, kDecode };

inline const char* RoleName(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

// The place of a process among those that share the layers of a stage or a decode service.

inline constexpr int kMaxTensorRanks = 64;
// As --pp-size.
inline constexpr int kMaxStages = 64;

// One of `size` tensor-parallel ranks; one alone holds everything.
struct TensorRank {
  int rank = 0;
  int size = 1;
  bool alone() const { return size == 1; }
  auto operator<=>(const TensorRank&) const = default;
};

// [begin, end) of a model's heads, columns or tokens.
struct IndexRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool Contains(int index) const { return begin <= index && index < end; }
  auto operator<=>(const IndexRange&) const = default;
};

// The KV heads that a rank holds, of a model's: its part of them, or the one that it shares with
// its neighbours where there are more ranks than heads. One of the two divides the other.
inline IndexRange KvHeadsOf(int kv_heads, TensorRank rank) {
  const int sharing = rank.size > kv_heads ? rank.size / kv_heads : 1;  // Ranks of one head.
  const int part = sharing > 1 ? 1 : kv_heads / rank.size;
  const int first = rank.rank / sharing * part;
  return {first, first + part};
}

}  // namespace baton

#endif  // COMMON_TYPES_INSTANCE_H_
