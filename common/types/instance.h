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
inline constexpr uint32_t kOldestProtocolVersion = 12;
inline constexpr uint32_t kProtocolVersion = 12;
static_assert(kOldestProtocolVersion <= kProtocolVersion);

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
