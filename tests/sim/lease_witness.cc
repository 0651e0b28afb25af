#include "tests/sim/lease_witness.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::sim {

LeaseWitness::LeaseWitness(World& world, const Topology& topology, InstanceRef self,
                           TensorRank rank)
    : world_(world), topology_(topology), self_(std::move(self)), rank_(rank) {}

void LeaseWitness::Complain(const std::string& what) {
  world_.Violate(absl::StrCat("leases of ", self_.id, ": ", what));
}

void LeaseWitness::Granted(const KvGrant& grant) {
  Grant& mine = grants_[grant.generation];
  mine.grant = grant;
  mine.granted_us = world_.now_us();
  slots_.insert(grant.slot);
  for (const KvWriter& who : grant.writers) {
    Writer writer;
    writer.who = who;
    if (who.tensor_rank.size != topology_.ranks ||
        !topology_.WritesTo(who.tensor_rank.rank, rank_.rank)) {
      Complain(who.instance.id + " is a writer, and of another number of ranks, or has copies");
    }
    writer.heard_us = world_.now_us();
    for (size_t bytes = LayerBytes(who) * static_cast<size_t>(who.layers.size()); bytes > 0;) {
      bytes -= std::min(bytes, topology_.PartBytes());
      ++writer.parts;
    }
    mine.writers.push_back(std::move(writer));
  }
}

void LeaseWitness::Revoked(uint32_t /*slot*/, uint64_t generation) {
  const auto found = grants_.find(generation);
  if (found == grants_.end() || found->second.revoked) return;
  Grant& grant = found->second;
  grant.open = false;
  grant.revoked = true;
  if (grant.under_way > 0) return;
  due_.emplace(Kind::kDrained, generation);
  grants_.erase(found);
}

template <typename Message>
LeaseWitness::Grant* LeaseWitness::Locate(const Message& message, size_t& writer) {
  Heard(message.writer_incarnation);
  return Find(message, writer);
}

// The open grant that a message is for, if it is from one of its writers to this life of the
// service.
template <typename Message>
LeaseWitness::Grant* LeaseWitness::Find(const Message& message, size_t& writer) {
  const auto found = grants_.find(message.generation);
  if (found == grants_.end() || message.decode_incarnation != self_.incarnation) return nullptr;
  Grant& grant = found->second;
  if (!grant.open || grant.grant.slot != message.slot) return nullptr;
  for (writer = 0; writer < grant.writers.size(); ++writer) {
    const KvWriter& who = grant.writers[writer].who;
    if (who.instance.incarnation == message.writer_incarnation && who.layers == message.layers) {
      return &grant;
    }
  }
  return nullptr;
}

bool LeaseWitness::Fits(const Grant& grant, const Writer& writer,
                        const KvDataHeader& header) const {
  const auto pages = static_cast<int>(grant.grant.pages.size());
  if (header.first_page < 0 || header.page_count < 1 ||
      header.first_page + header.page_count > pages || header.part < 0 ||
      header.part >= writer.parts || (writer.parts > 1 && header.page_count != 1)) {
    return false;
  }
  const size_t band = LayerBytes(writer.who) * static_cast<size_t>(writer.who.layers.size());
  size_t bytes = band * static_cast<size_t>(header.page_count);
  if (writer.parts > 1) {
    const size_t before = static_cast<size_t>(header.part) * topology_.PartBytes();
    bytes = std::min(topology_.PartBytes(), band - before);
  }
  if (header.bytes != bytes) return false;
  for (int page = header.first_page; page < header.first_page + header.page_count; ++page) {
    if (writer.announced.contains({page, header.part})) return false;
  }
  return true;
}

std::optional<LeaseWitness::Extent> LeaseWitness::ExtentOf(const KvDataHeader& header) {
  size_t index = 0;
  const Grant* const grant = Find(header, index);
  if (grant == nullptr || !Fits(*grant, grant->writers[index], header)) return std::nullopt;
  return Extent{static_cast<int>(grant->grant.pages.size()), grant->writers[index].parts};
}

bool LeaseWitness::Awaits(const KvCommit& commit) {
  size_t index = 0;
  return Find(commit, index) != nullptr;
}

void LeaseWitness::Data(const KvDataHeader& header, bool again,
                        const absl::StatusOr<KvPlacement>& answer, KvRefusal refusal) {
  size_t index = 0;
  Grant* const grant = Locate(header, index);
  const bool allowed = grant != nullptr && Fits(*grant, grant->writers[index], header);
  if (allowed != answer.ok()) {
    return Complain(
        absl::StrCat(allowed ? "good KV is refused" : "stale, foreign or repeated KV is taken",
                     ": slot ", header.slot, " generation ", header.generation, " pages ",
                     header.first_page, "+", header.page_count, " part ", header.part));
  }
  if (!allowed) {
    const bool former_life = header.decode_incarnation != self_.incarnation;
    // The copy of a slow message may come before it.
    const bool repeated = grant != nullptr && (again || grant->writers[index].copied);
    if ((former_life && refusal != KvRefusal::kWrongIncarnation) ||
        (repeated && refusal != KvRefusal::kDuplicate)) {
      return Complain(absl::StrCat("KV is refused as ", KvRefusalName(refusal)));
    }
    if (grant == nullptr || repeated) return;
    return Complain(absl::StrCat("a writer announces pages ", header.first_page, "+",
                                 header.page_count, " part ", header.part,
                                 ", which are not the prompt's or have come"));
  }
  Writer& writer = grant->writers[index];
  const KvPlacement& placement = *answer;
  writer.copied |= again;
  if (static_cast<int>(placement.pages.size()) != header.page_count ||
      placement.layers != header.layers ||
      placement.heads != topology_.CommonHeads(writer.who.tensor_rank.rank, rank_.rank) ||
      placement.offset_bytes != static_cast<size_t>(header.part) * topology_.PartBytes() ||
      placement.page_bytes * static_cast<size_t>(header.page_count) != header.bytes) {
    return Complain("KV is placed elsewhere than its header says");
  }
  for (int i = 0; i < header.page_count; ++i) {
    const int page = header.first_page + i;
    writer.announced.insert({page, header.part});
    if (placement.pages[static_cast<size_t>(i)] != grant->grant.pages[static_cast<size_t>(page)]) {
      Complain("KV is placed on another page than its header says");
    }
  }
  ++grant->under_way;
  const Run run{header.generation, index, header.page_count, header.checksum};
  if (!runs_.emplace(placement.receipt, run).second) Complain("a receipt is used twice");
}

void LeaseWitness::Placed(uint64_t receipt, bool ok, uint64_t checksum, bool damaged) {
  const Run run = runs_.at(receipt);
  runs_.erase(receipt);
  const auto found = grants_.find(run.generation);
  if (found == grants_.end()) return;  // Somebody has complained.
  Grant& grant = found->second;
  Writer& writer = grant.writers[run.writer];
  --grant.under_way;
  if (ok) Heard(writer.who.instance.incarnation);
  if (grant.revoked) {
    if (grant.under_way > 0) return;
    due_.emplace(Kind::kDrained, run.generation);
    grants_.erase(found);
    return;
  }
  if (!grant.open) return;
  if (ok && !damaged && checksum != run.checksum) {
    return Complain("KV has another checksum than announced, and nothing has damaged it");
  }
  if (!ok || checksum != run.checksum) return Fail(grant);
  writer.arrived += run.parts;
  writer.sum += run.checksum;
  Settle(grant, writer);
}

KvReceipt LeaseWitness::ReceiptOf(const KvCommit& commit, KvReceiptKind kind, int missing) const {
  return KvReceipt{{commit.writer_id, commit.writer_incarnation},
                   commit.slot,
                   commit.generation,
                   commit.decode_incarnation,
                   kind,
                   static_cast<uint32_t>(missing)};
}

void LeaseWitness::Commit(const KvCommit& commit, bool again, const absl::Status& answer) {
  size_t index = 0;
  Grant* const grant = Locate(commit, index);
  if (grant == nullptr) {
    const auto found = grants_.find(commit.generation);
    const bool open =
        found != grants_.end() && found->second.open && found->second.grant.slot == commit.slot;
    const bool here = commit.decode_incarnation == self_.incarnation;
    const bool over = here && slots_.contains(commit.slot) && !open;
    receipts_due_.push_back(
        ReceiptOf(commit, over ? KvReceiptKind::kOver : KvReceiptKind::kRefused, 0));
    if (answer.ok()) Complain("a stale or foreign commit is taken");
    return;
  }
  Writer& writer = grant->writers[index];
  if (writer.commit == commit) {  // It asks.
    const int missing = Missing(*grant, writer);
    receipts_due_.push_back(ReceiptOf(
        commit, missing == 0 ? KvReceiptKind::kComplete : KvReceiptKind::kMissing, missing));
    if (!answer.ok()) Complain("a commit that asks is refused");
    return;
  }
  const bool right = commit.page_count == static_cast<int>(grant->grant.pages.size()) &&
                     commit.has_first_token == (commit.layers.end == topology_.layers &&
                                                writer.who.tensor_rank.rank == 0);
  if (!right || writer.commit.has_value()) {
    if (!writer.commit.has_value()) Fail(*grant);
    receipts_due_.push_back(ReceiptOf(commit, KvReceiptKind::kRefused, 0));
    if (answer.ok()) Complain("a wrong commit is taken");
    if (!again) Complain("a writer's commit is not what its grant needs");
    return;
  }
  if (!answer.ok()) Complain(absl::StrCat("a good commit is refused: ", answer.message()));
  writer.commit = commit;
  Settle(*grant, writer);
}

int LeaseWitness::Missing(const Grant& grant, const Writer& writer) const {
  return static_cast<int>(grant.grant.pages.size()) * writer.parts - writer.arrived;
}

bool LeaseWitness::Complete(const Grant& grant, const Writer& writer) const {
  return Missing(grant, writer) == 0 && writer.commit.has_value();
}

void LeaseWitness::Settle(Grant& grant, const Writer& writer) {
  if (!Complete(grant, writer)) return;
  if (writer.commit->checksum_sum != writer.sum) {
    return Complain("a commit names other KV than arrived");
  }
  receipts_due_.push_back(ReceiptOf(*writer.commit, KvReceiptKind::kComplete, 0));
  const bool all = std::all_of(grant.writers.begin(), grant.writers.end(),
                               [&](const Writer& other) { return Complete(grant, other); });
  if (!all) return;
  grant.open = false;
  due_.emplace(Kind::kCommitted, grant.grant.generation);
}

void LeaseWitness::Told(const std::vector<KvReceipt>& receipts) {
  if (receipts != receipts_due_) {
    Complain(absl::StrCat("writers are told ", receipts.size(), " things, ", receipts_due_.size(),
                          " are true"));
  }
  receipts_due_.clear();
}

void LeaseWitness::Fail(Grant& grant) {
  grant.open = false;
  due_.emplace(Kind::kFailed, grant.grant.generation);
}

void LeaseWitness::Heard(uint64_t incarnation) {
  for (auto& [generation, grant] : grants_) {
    for (Writer& writer : grant.writers) {
      if (writer.who.instance.incarnation == incarnation) writer.heard_us = world_.now_us();
    }
  }
}

void LeaseWitness::Heartbeat(const InstanceRef& who) {
  for (auto& [generation, grant] : grants_) {
    for (Writer& writer : grant.writers) {
      if (writer.who.instance == who) writer.heard_us = world_.now_us();
    }
  }
}

std::set<InstanceRef> LeaseWitness::OpenWriters() const {
  std::set<InstanceRef> writers;
  for (const auto& [generation, grant] : grants_) {
    if (!grant.open) continue;
    for (const Writer& writer : grant.writers) writers.insert(writer.who.instance);
  }
  return writers;
}

int64_t LeaseWitness::DeadlineUs(const Grant& grant) const {
  int64_t deadline_us = grant.grant.deadline_us;
  for (const Writer& writer : grant.writers) {
    if (Complete(grant, writer)) continue;
    deadline_us = std::min(deadline_us, writer.heard_us + topology_.times.writer_lease_us);
  }
  return deadline_us;
}

void LeaseWitness::Ticked() {
  for (auto& [generation, grant] : grants_) {
    if (grant.open && world_.now_us() >= DeadlineUs(grant)) Fail(grant);
  }
}

void LeaseWitness::Sleeps(int64_t until_us) {
  int64_t next_us = kNeverUs;
  for (const auto& [generation, grant] : grants_) {
    if (grant.open) next_us = std::min(next_us, DeadlineUs(grant));
  }
  if (until_us == next_us) return;
  Complain(absl::StrCat("the next grant ends at ", next_us, ", and is said to at ", until_us));
}

void LeaseWitness::CheckEvent(const LeaseEvent& event) {
  if (const auto* failed = std::get_if<KvFailed>(&event); failed && !LegOf(failed->status)) {
    Complain("a hand-off fails, and nobody is named for it");
  }
  const auto* const committed = std::get_if<KvCommitted>(&event);
  if (committed == nullptr) return;
  const KvGrant& grant = grants_.at(committed->generation).grant;
  const size_t bytes = topology_.DecodeLayout().BytesPerLayer() * grant.pages.size() *
                       static_cast<size_t>(topology_.layers);
  if (committed->slot == grant.slot && committed->bytes == bytes) return;
  Complain(absl::StrCat("generation ", committed->generation, " is committed with ",
                        committed->bytes, " bytes of ", bytes, ", or in another slot"));
}

void LeaseWitness::Raised(const std::vector<LeaseEvent>& events) {
  for (const LeaseEvent& event : events) {
    const uint64_t generation = std::visit([](const auto& e) { return e.generation; }, event);
    const auto found = due_.find({static_cast<Kind>(event.index()), generation});
    if (found == due_.end()) {
      constexpr const char* kNames[] = {"committed", "failed", "drained"};
      return Complain(absl::StrCat("generation ", generation, " is said to be ",
                                   kNames[event.index()], ", twice or too early"));
    }
    due_.erase(found);
    CheckEvent(event);
  }
  if (due_.empty()) return;
  Complain(absl::StrCat("generation ", due_.begin()->second,
                        " is complete, silent, overdue or drained, and nobody is told"));
  due_.clear();
}

}  // namespace baton::sim
