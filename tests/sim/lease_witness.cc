#include "tests/sim/lease_witness.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::sim {

LeaseWitness::LeaseWitness(World& world, const Topology& topology, InstanceRef self,
                           TensorRank rank, LayerRange layers)
    : world_(world), topology_(topology), self_(std::move(self)), rank_(rank), layers_(layers) {}

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
    if (who.layers.size() < 1 || who.layers.begin < layers_.begin || who.layers.end > layers_.end) {
      Complain(who.instance.id + " is a writer of layers that are another stage's");
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

template <typename Message>
KvRefusal LeaseWitness::WhyNobodys(const Message& message) const {
  if (message.decode_incarnation != self_.incarnation) return KvRefusal::kWrongIncarnation;
  if (!slots_.contains(message.slot)) return KvRefusal::kUnknownSlot;
  const auto found = grants_.find(message.generation);
  if (found == grants_.end() || found->second.grant.slot != message.slot || found->second.revoked) {
    return KvRefusal::kStaleGeneration;
  }
  return found->second.open ? KvRefusal::kNotAWriter : KvRefusal::kConsumed;
}

size_t LeaseWitness::BytesOf(const Writer& writer, const KvDataHeader& header) const {
  const size_t band = LayerBytes(writer.who) * static_cast<size_t>(writer.who.layers.size());
  if (writer.parts == 1) return band * static_cast<size_t>(header.page_count);
  const size_t before = static_cast<size_t>(header.part) * topology_.PartBytes();
  return std::min(topology_.PartBytes(), band - before);
}

std::optional<KvRefusal> LeaseWitness::Misfit(const Grant& grant, const Writer& writer,
                                              const KvDataHeader& header) const {
  const auto pages = static_cast<int>(grant.grant.pages.size());
  if (header.first_page < 0 || header.page_count < 1 ||
      header.first_page + header.page_count > pages || header.part < 0 ||
      header.part >= writer.parts || (writer.parts > 1 && header.page_count != 1)) {
    return KvRefusal::kBadRange;
  }
  if (header.bytes != BytesOf(writer, header)) return KvRefusal::kBadLength;
  for (int page = header.first_page; page < header.first_page + header.page_count; ++page) {
    if (writer.announced.contains({page, header.part})) return KvRefusal::kDuplicate;
  }
  return std::nullopt;
}

std::optional<LeaseWitness::Extent> LeaseWitness::ExtentOf(const KvDataHeader& header) {
  size_t index = 0;
  const Grant* const grant = Find(header, index);
  if (grant == nullptr) return std::nullopt;
  const Writer& writer = grant->writers[index];
  if (Misfit(*grant, writer, header).has_value()) return std::nullopt;
  Extent extent{static_cast<int>(grant->grant.pages.size()), writer.parts, std::nullopt};
  if (writer.parts > 1) return extent;
  for (const auto& [page, part] : writer.announced) {
    if (page > 0 && !writer.announced.contains({page - 1, 0})) extent.missing_page = page - 1;
  }
  return extent;
}

bool LeaseWitness::Awaits(const KvCommit& commit) {
  size_t index = 0;
  return Find(commit, index) != nullptr;
}

bool LeaseWitness::AwaitsFirst(const KvCommit& commit) {
  size_t index = 0;
  const Grant* const grant = Find(commit, index);
  return grant != nullptr && !grant->writers[index].commit.has_value();
}

std::optional<uint32_t> LeaseWitness::UnusedSlot() const {
  for (uint32_t slot = 0; slot < static_cast<uint32_t>(topology_.max_running); ++slot) {
    if (!slots_.contains(slot)) return slot;
  }
  return std::nullopt;
}

void LeaseWitness::Data(const KvDataHeader& header, bool again,
                        const absl::StatusOr<KvPlacement>& answer, KvRefusal refusal) {
  size_t index = 0;
  Grant* const grant = Locate(header, index);
  const std::optional<KvRefusal> refused =
      grant == nullptr ? WhyNobodys(header) : Misfit(*grant, grant->writers[index], header);
  const bool allowed = !refused.has_value();
  if (allowed != answer.ok()) {
    return Complain(
        absl::StrCat(allowed ? "good KV is refused" : "stale, foreign or repeated KV is taken",
                     ": slot ", header.slot, " generation ", header.generation, " pages ",
                     header.first_page, "+", header.page_count, " part ", header.part));
  }
  if (!allowed) {
    if (refusal != *refused) {
      return Complain(absl::StrCat("KV is refused as ", KvRefusalName(refusal), ", it is ",
                                   KvRefusalName(*refused)));
    }
    // The copy of a slow message may come before it.
    if (grant == nullptr || again || grant->writers[index].copied) return;
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
  if (found == grants_.end()) return;  // A violation was reported already.
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
  if (!ok) return FailFor(grant, writer, absl::StatusCode::kUnavailable);
  if (checksum != run.checksum) return FailFor(grant, writer, absl::StatusCode::kDataLoss);
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

void LeaseWitness::Commit(const KvCommit& commit, bool again, const absl::Status& answer,
                          KvRefusal refusal) {
  const bool forged = std::exchange(forged_, false);
  const auto must_refuse = [&](KvRefusal as, KvReceiptKind kind) {
    receipts_due_.push_back(ReceiptOf(commit, kind, 0));
    if (!answer.ok() && refusal == as) return;
    Complain(absl::StrCat("a commit that is ", KvRefusalName(as), " is ",
                          answer.ok() ? "taken" : KvRefusalName(refusal)));
  };
  size_t index = 0;
  Grant* const grant = Locate(commit, index);
  if (grant == nullptr) {
    const KvRefusal as = WhyNobodys(commit);
    const bool over = as == KvRefusal::kStaleGeneration || as == KvRefusal::kConsumed;
    return must_refuse(as, over ? KvReceiptKind::kOver : KvReceiptKind::kRefused);
  }
  Writer& writer = grant->writers[index];
  if (writer.commit == commit) {  // It asks.
    const int missing = Missing(*grant, writer);
    receipts_due_.push_back(ReceiptOf(
        commit, missing == 0 ? KvReceiptKind::kComplete : KvReceiptKind::kMissing, missing));
    if (!answer.ok()) Complain("a commit that asks is refused");
    return;
  }
  if (writer.commit.has_value()) {
    if (!again && !writer.forged) Complain("a writer contradicts its own commit");
    return must_refuse(KvRefusal::kDuplicate, KvReceiptKind::kRefused);
  }
  const bool draws = commit.layers.end == topology_.layers && writer.who.tensor_rank.rank == 0;
  const bool right_pages = commit.page_count == static_cast<int>(grant->grant.pages.size());
  if (!right_pages || commit.has_first_token != draws) {
    if (!again && !forged) Complain("a writer's commit is not what its grant needs");
    FailFor(*grant, writer, absl::StatusCode::kInternal);
    return must_refuse(right_pages ? KvRefusal::kBadCommit : KvRefusal::kBadRange,
                       KvReceiptKind::kRefused);
  }
  if (!answer.ok()) Complain(absl::StrCat("a good commit is refused: ", answer.message()));
  writer.commit = commit;
  writer.forged = forged;
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
    if (!writer.forged) Complain("a commit names other KV than arrived");
    return FailFor(grant, writer, absl::StatusCode::kDataLoss);
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

void LeaseWitness::Fail(Grant& grant, Cause cause) {
  grant.open = false;
  causes_[grant.grant.generation] = std::move(cause);
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
  for (auto& entry : grants_) {
    Grant& grant = entry.second;
    if (!grant.open || world_.now_us() < DeadlineUs(grant)) continue;
    if (world_.now_us() >= grant.grant.deadline_us) {
      Fail(grant, {absl::StatusCode::kDeadlineExceeded, "decode", self_.id});
      continue;
    }
    // If several are silent, the first one.
    const auto silent =
        std::find_if(grant.writers.begin(), grant.writers.end(), [&](const Writer& writer) {
          return !Complete(grant, writer) &&
                 world_.now_us() >= writer.heard_us + topology_.times.writer_lease_us;
        });
    FailFor(grant, *silent, absl::StatusCode::kUnavailable);
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

void LeaseWitness::CheckFailure(const KvFailed& failed) {
  const Cause cause = causes_.at(failed.generation);
  causes_.erase(failed.generation);
  if (failed.status.code() == cause.code && LegOf(failed.status) == cause.leg &&
      InstanceOf(failed.status) == cause.instance) {
    return;
  }
  Complain(absl::StrCat("generation ", failed.generation, " fails with ", failed.status.ToString(),
                        ", expected ", absl::StatusCodeToString(cause.code), " of ",
                        cause.instance));
}

void LeaseWitness::CheckEvent(const LeaseEvent& event) {
  if (const auto* failed = std::get_if<KvFailed>(&event)) return CheckFailure(*failed);
  const auto* const committed = std::get_if<KvCommitted>(&event);
  if (committed == nullptr) return;
  std::optional<SampledToken> token;
  for (const Writer& writer : grants_.at(committed->generation).writers) {
    if (writer.commit->has_first_token) token = writer.commit->first_token;
  }
  if (committed->first_token != token) Complain("a grant is committed with another first token");
  const KvGrant& grant = grants_.at(committed->generation).grant;
  const size_t bytes = topology_.DecodeLayout().BytesPerLayer() * grant.pages.size() *
                       static_cast<size_t>(layers_.size());
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
