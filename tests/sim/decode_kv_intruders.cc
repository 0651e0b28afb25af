// KV and commits that no writer of a grant sends: a lease table refuses each for what is wrong with
// it, and takes what is right as if they had never come.
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/decode_kv.h"

namespace baton::sim {
namespace {

constexpr double kKvAmongSo = 0.05;
constexpr double kCommitsAmongSo = 0.3;

// What identifies a message, in the order in which it is looked at.
template <typename Message>
struct BadIdentity {
  KvRefusal refusal;
  void (*spoil)(Message&, const Topology&);
};

template <typename Message>
constexpr BadIdentity<Message> kBadIdentities[] = {
    {KvRefusal::kWrongIncarnation, [](Message& m, const Topology&) { m.decode_incarnation ^= 1; }},
    {KvRefusal::kUnknownSlot,
     [](Message& m, const Topology& t) { m.slot = static_cast<uint32_t>(t.max_running); }},
    {KvRefusal::kStaleGeneration, [](Message& m, const Topology&) { ++m.generation; }},
    {KvRefusal::kStaleGeneration, [](Message& m, const Topology&) { --m.generation; }},
    {KvRefusal::kNotAWriter, [](Message& m, const Topology&) { m.writer_incarnation ^= 1; }},
    {KvRefusal::kNotAWriter, [](Message& m, const Topology&) { ++m.layers.end; }},
    {KvRefusal::kNotAWriter, [](Message& m, const Topology&) { --m.layers.begin; }},
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
  if (which < kIdentities) {
    kBadIdentities<KvDataHeader>[which].spoil(header, topology_);
    expected = kBadIdentities<KvDataHeader>[which].refusal;
  } else {
    kBadRuns[which - kIdentities].spoil(header, payload_bytes, *extent);
    expected = kBadRuns[which - kIdentities].refusal;
  }
  KvRefusal refusal = KvRefusal::kDuplicate;  // That of none of them.
  const auto answer = leases_.OnData(header, payload_bytes, world_.now_us(), refusal);
  if (!answer.ok() && refusal == expected) return;
  world_.Violate(absl::StrCat("leases of ", self_.id, ": KV that is to be refused as ",
                              KvRefusalName(expected), " is answered with ",
                              answer.status().ToString(), ", ", KvRefusalName(refusal)));
}

void DecodeKv::LetIntrudersCommit(const KvCommit& like) {
  if (!world_.random().Chance(kCommitsAmongSo) || !witness_.Awaits(like)) return;
  const auto& bad =
      kBadIdentities<KvCommit>[world_.random().Below(std::size(kBadIdentities<KvCommit>))];
  KvCommit commit = like;
  commit.writer_id = "nobody";  // Whom its receipt does not reach.
  bad.spoil(commit, topology_);
  KvRefusal refusal = KvRefusal::kDuplicate;
  std::vector<LeaseEvent> events;
  const absl::Status answer = leases_.OnCommit(commit, world_.now_us(), refusal, events);
  witness_.Commit(commit, true, answer);
  witness_.Raised(events);
  ToCore(events);
  if (!answer.ok() && refusal == bad.refusal && events.empty()) return;
  world_.Violate(absl::StrCat("leases of ", self_.id, ": a commit that is to be refused as ",
                              KvRefusalName(bad.refusal), " is answered with ", answer.ToString(),
                              ", ", KvRefusalName(refusal)));
}

}  // namespace baton::sim
