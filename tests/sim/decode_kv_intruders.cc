// KV and commits that no writer of a grant sends: a lease table refuses each for what is wrong with
// it, and takes what is right as if they had never come.
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/decode_kv.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

constexpr double kKvAmongSo = 0.05;
constexpr double kCommitsAmongSo = 0.3;

struct NoSlots {
  uint32_t beyond = 0;  // The last one.
  uint32_t unused = 0;  // Has never been granted; or the same.
};

// What identifies a message, in the order in which it is looked at.
template <typename Message>
struct BadIdentity {
  KvRefusal refusal;
  void (*spoil)(Message&, const NoSlots&);
};

template <typename Message>
constexpr BadIdentity<Message> kBadIdentities[] = {
    {KvRefusal::kWrongIncarnation, [](Message& m, const NoSlots&) { m.decode_incarnation ^= 1; }},
    {KvRefusal::kUnknownSlot, [](Message& m, const NoSlots& no) { m.slot = no.beyond; }},
    {KvRefusal::kUnknownSlot, [](Message& m, const NoSlots& no) { m.slot = no.unused; }},
    {KvRefusal::kStaleGeneration, [](Message& m, const NoSlots&) { ++m.generation; }},
    {KvRefusal::kStaleGeneration, [](Message& m, const NoSlots&) { --m.generation; }},
    {KvRefusal::kNotAWriter, [](Message& m, const NoSlots&) { m.writer_incarnation ^= 1; }},
    {KvRefusal::kNotAWriter, [](Message& m, const NoSlots&) { ++m.layers.end; }},
    {KvRefusal::kNotAWriter, [](Message& m, const NoSlots&) { --m.layers.begin; }},
};

using Extent = LeaseWitness::Extent;

struct BadRun {
  KvRefusal refusal;
  void (*spoil)(KvDataHeader&, uint64_t& payload_bytes, const Extent&);
};

constexpr BadRun kBadRuns[] = {
    {KvRefusal::kBadRange, [](KvDataHeader& h, uint64_t&, const Extent&) { h.first_page = -1; }},
    {KvRefusal::kBadRange, [](KvDataHeader& h, uint64_t&, const Extent&) { h.page_count = 0; }},
    {KvRefusal::kBadRange,
     [](KvDataHeader& h, uint64_t&, const Extent& e) { h.first_page = e.pages; }},
    {KvRefusal::kBadRange, [](KvDataHeader& h, uint64_t&,
                              const Extent& e) { h.page_count = e.pages - h.first_page + 1; }},
    {KvRefusal::kBadRange, [](KvDataHeader& h, uint64_t&, const Extent&) { h.part = -1; }},
    {KvRefusal::kBadRange, [](KvDataHeader& h, uint64_t&, const Extent& e) { h.part = e.parts; }},
    {KvRefusal::kBadLength, [](KvDataHeader& h, uint64_t&, const Extent&) { ++h.bytes; }},
    {KvRefusal::kBadLength, [](KvDataHeader&, uint64_t& b, const Extent&) { --b; }},
    {KvRefusal::kBadLength,
     [](KvDataHeader& h, uint64_t& b, const Extent&) { h.bytes = b = 2 * b; }},
    // About a page that has come, behind one that has not; where there is none, too long.
    {KvRefusal::kDuplicate,
     [](KvDataHeader& h, uint64_t& b, const Extent& e) {
       h.bytes = b = b / static_cast<uint64_t>(h.page_count) * 2;
       h.page_count = 2;
       h.first_page = e.missing_page.value_or(0);
     }},
};

}  // namespace

void DecodeKv::LetIntrudersWrite(const KvDataHeader& like) {
  if (!world_.random().Chance(kKvAmongSo)) return;
  const std::optional<Extent> extent = witness_.ExtentOf(like);
  if (!extent.has_value()) return;  // It is to be refused itself.
  constexpr size_t kIdentities = std::size(kBadIdentities<KvDataHeader>);
  const uint64_t which = world_.random().Below(kIdentities + std::size(kBadRuns));
  KvDataHeader header = like;
  uint64_t payload_bytes = like.bytes;
  KvRefusal expected;
  if (which >= kIdentities && !extent->missing_page.has_value() &&
      kBadRuns[which - kIdentities].refusal == KvRefusal::kDuplicate) {
    return;
  }
  if (which < kIdentities) {
    const auto beyond = static_cast<uint32_t>(topology_.max_running);
    kBadIdentities<KvDataHeader>[which].spoil(header,
                                              {beyond, witness_.UnusedSlot().value_or(beyond)});
    expected = kBadIdentities<KvDataHeader>[which].refusal;
  } else {
    kBadRuns[which - kIdentities].spoil(header, payload_bytes, *extent);
    expected = kBadRuns[which - kIdentities].refusal;
  }
  KvRefusal refusal = KvRefusal::kBadCommit;  // That of none of them.
  const auto answer = leases_.OnData(header, payload_bytes, world_.now_us(), refusal);
  if (!answer.ok() && refusal == expected) return;
  world_.Violate(absl::StrCat("leases of ", self_.id, ": KV that is to be refused as ",
                              KvRefusalName(expected), " is answered with ",
                              answer.status().ToString(), ", ", KvRefusalName(refusal)));
}

void DecodeKv::LetIntrudersCommit(const KvCommit& like) {
  if (!witness_.Awaits(like)) return;
  if (witness_.AwaitsFirst(like) && world_.Strikes(&NetworkFaults::nonsense)) {
    return LetIntrudersForge(like);
  }
  if (!world_.random().Chance(kCommitsAmongSo)) return;
  const auto& bad =
      kBadIdentities<KvCommit>[world_.random().Below(std::size(kBadIdentities<KvCommit>))];
  KvCommit commit = like;
  commit.writer_id = "nobody";  // Whom its receipt does not reach.
  const auto beyond = static_cast<uint32_t>(topology_.max_running);
  bad.spoil(commit, {beyond, witness_.UnusedSlot().value_or(beyond)});
  CommitOf(commit);
}

// After the writer's own, which counts.
void DecodeKv::LetIntrudersContradict(const KvCommit& like) {
  if (!world_.random().Chance(kCommitsAmongSo) || !witness_.Awaits(like)) return;
  KvCommit commit = like;
  commit.writer_id = "nobody";
  ++commit.checksum_sum;
  CommitOf(commit);
}

// Before the writer's own, which then says something else.
void DecodeKv::LetIntrudersForge(const KvCommit& like) {
  KvCommit commit = like;
  commit.writer_id = "nobody";
  switch (world_.random().Below(4)) {
    case 0:
      ++commit.page_count;
      break;
    case 1:
      --commit.page_count;
      break;
    case 2:
      commit.has_first_token = !commit.has_first_token;
      break;
    default:
      ++commit.checksum_sum;
  }
  witness_.ForgeNext();
  CommitOf(commit);
}

// The witness knows what has to become of it.
void DecodeKv::CommitOf(const KvCommit& commit) {
  KvRefusal refusal = KvRefusal::kBadLength;  // Used by no commit.
  std::vector<LeaseEvent> events;
  const absl::Status answer = leases_.OnCommit(commit, world_.now_us(), refusal, events);
  witness_.Commit(commit, true, answer, refusal);
  witness_.Raised(events);
  ToCore(events);
}

// Revokes other slots and generations, which must change nothing.
void DecodeKv::LetIntrudersRevoke(uint32_t slot, uint64_t generation,
                                  std::vector<LeaseEvent>& events) {
  if (!world_.random().Chance(kCommitsAmongSo)) return;
  leases_.Revoke(static_cast<uint32_t>(topology_.max_running), generation, events);
  leases_.Revoke(slot, generation + 1, events);
  leases_.Revoke(slot, generation - 1, events);
}

}  // namespace baton::sim
