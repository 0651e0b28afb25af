#include "common/kv/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "common/kv/lease_state.h"

namespace baton {

using lease_internal::InFlight;
using lease_internal::LastHeard;
using lease_internal::PartState;
using lease_internal::Revocable;
using lease_internal::Slot;
using lease_internal::SlotState;
using lease_internal::WriterProgress;

LeaseTable::LeaseTable(LeaseTableOptions options) : state_(std::make_unique<State>()) {
  BATON_CHECK(options.slots > 0 && options.layout.layers > 0 && options.layout.page_size > 0)
      << options.slots << " slots, " << options.layout.layers << " layers";
  if (options.model_kv_heads == 0) options.model_kv_heads = options.layout.kv_heads;
  if (options.model_layers == 0) options.model_layers = options.layout.layers;
  BATON_CHECK(KvHeadsOf(options.model_kv_heads, options.rank).size() == options.layout.kv_heads)
      << "rank " << options.rank.rank << " of " << options.rank.size << " with "
      << options.layout.kv_heads << " of " << options.model_kv_heads << " KV heads";
  state_->slots.resize(options.slots);
  state_->options = std::move(options);
}

LeaseTable::~LeaseTable() = default;

void LeaseTable::Grant(KvGrant grant, int64_t now_us) {
  State& table = *state_;
  BATON_CHECK(grant.slot < table.slots.size()) << "slot " << grant.slot;
  Slot& slot = table.slots[grant.slot];
  BATON_CHECK(slot.state == SlotState::kFree) << "slot " << grant.slot << " is taken";
  BATON_CHECK(grant.generation > table.last_generation)
      << "generation " << grant.generation << " after " << table.last_generation;
  const auto page_count = static_cast<int>(grant.pages.size());
  BATON_CHECK(grant.first_page >= 0 && grant.first_page < page_count)
      << "a grant of pages from " << grant.first_page << " to " << page_count;
  table.last_generation = grant.generation;
  slot =
      Slot{.state = SlotState::kGranted, .granted_us = now_us};  // Nothing of the last grant stays.
  for (const KvWriter& writer : grant.writers) {
    const auto route =
        RouteBetween(table.options.model_kv_heads, writer.tensor_rank, table.options.rank);
    BATON_CHECK(route.has_value()) << writer.instance.id << " writes nothing to this rank";
    WriterProgress progress;
    progress.writer = writer;
    progress.heads = route->heads;
    progress.draws =
        writer.layers.end == table.options.model_layers && writer.tensor_rank.rank == 0;
    slot.wants_token = slot.wants_token || progress.draws;
    const KvLayout band = table.options.layout.WithHeads(progress.heads.size());
    progress.band_bytes = band.BandBytes(writer.layers);
    progress.parts_per_page = band.PartsPerPage(writer.layers, table.options.part_bytes);
    progress.first_page = grant.first_page;
    progress.parts.assign(static_cast<size_t>(page_count - grant.first_page) *
                              static_cast<size_t>(progress.parts_per_page),
                          PartState::kMissing);
    slot.writers.push_back(std::move(progress));
    ++table.heard.try_emplace(writer.instance, LastHeard{now_us, 0}).first->second.grants;
  }
  slot.grant = std::move(grant);
}

void LeaseTable::Revoke(uint32_t slot_index, uint64_t generation, std::vector<LeaseEvent>& events) {
  State& table = *state_;
  if (slot_index >= table.slots.size()) return;
  Slot& slot = table.slots[slot_index];
  if (!Revocable(slot.state) || slot.grant.generation != generation) return;
  table.ForgetWriters(slot);
  Covered<"lease: a grant is revoked">();
  slot.state = SlotState::kDraining;
  if (slot.in_flight == 0) table.Drain(slot_index, events);
}

absl::StatusOr<KvPlacement> LeaseTable::OnData(const KvDataHeader& header, size_t payload_bytes,
                                               int64_t now_us, KvRefusal& refusal) {
  State& table = *state_;
  table.Heard(header.writer_incarnation, now_us);
  BATON_ASSIGN_OR_RETURN(const State::Place place, table.Locate(header, refusal));
  Slot& slot = *place.slot;
  WriterProgress& writer = slot.writers[place.writer];
  BATON_RETURN_IF_ERROR(table.CheckRun(slot, writer, header, payload_bytes, refusal));

  KvPlacement placement;
  placement.layers = header.layers;
  placement.heads = writer.heads;
  placement.offset_bytes = static_cast<size_t>(header.part) * table.options.part_bytes;
  placement.page_bytes = header.bytes / static_cast<uint64_t>(header.page_count);
  placement.receipt = table.next_receipt++;
  for (int page = header.first_page; page < header.first_page + header.page_count; ++page) {
    placement.pages.push_back(slot.grant.pages[static_cast<size_t>(page)]);
  }
  const auto [begin, end] = writer.PartsOf(header);
  for (size_t part = begin; part < end; ++part) writer.parts[part] = PartState::kArriving;
  ++slot.in_flight;
  table.in_flight.emplace(placement.receipt,
                          InFlight{header.slot, slot.grant.generation, place.writer, begin, end,
                                   header.bytes, header.checksum});
  return placement;
}

void LeaseTable::OnPlaced(uint64_t receipt, const absl::Status& status, uint64_t checksum,
                          int64_t now_us, std::vector<LeaseEvent>& events) {
  State& table = *state_;
  const auto found = table.in_flight.find(receipt);
  BATON_CHECK(found != table.in_flight.end()) << "receipt " << receipt << " is not under way";
  const InFlight run = found->second;
  table.in_flight.erase(found);
  Slot& slot = table.slots[run.slot];
  --slot.in_flight;
  if (status.ok()) table.Heard(slot.writers[run.writer].writer.instance.incarnation, now_us);
  switch (slot.state) {
    case SlotState::kDraining:
      Covered<"lease: a placement ends after its grant">();
      if (slot.in_flight == 0) table.Drain(run.slot, events);
      return;
    case SlotState::kGranted:
      table.Arrived(run.slot, run, status, checksum, events);
      return;
    case SlotState::kFailed:
    case SlotState::kCommitted:
    case SlotState::kFree:
      return;
  }
}

absl::Status LeaseTable::OnCommit(const KvCommit& commit, int64_t now_us, KvRefusal& refusal,
                                  std::vector<LeaseEvent>& events) {
  State& table = *state_;
  table.Heard(commit.writer_incarnation, now_us);
  const absl::StatusOr<State::Place> place = table.Locate(commit, refusal);
  if (!place.ok()) {
    const bool over = refusal == KvRefusal::kStaleGeneration || refusal == KvRefusal::kConsumed;
    table.Tell(commit, over ? KvReceiptKind::kOver : KvReceiptKind::kRefused, 0);
    return place.status();
  }
  Slot& slot = *place->slot;
  WriterProgress& writer = slot.writers[place->writer];
  if (writer.commit == commit) {
    Covered<"lease: a commit comes again">();
    if (writer.Complete()) {
      table.Tell(commit, KvReceiptKind::kComplete, 0);
    } else {
      table.Tell(
          commit, KvReceiptKind::kMissing,
          static_cast<uint32_t>(writer.parts.size()) - static_cast<uint32_t>(writer.arrived));
    }
    return absl::OkStatus();
  }
  if (absl::Status status = table.CheckCommit(commit, writer, refusal, events); !status.ok()) {
    table.Tell(commit, KvReceiptKind::kRefused, 0);
    return status;
  }
  writer.commit = commit;
  if (commit.has_first_token) slot.first_token = commit.first_token;
  table.Settle(commit.slot, place->writer, events);
  return absl::OkStatus();
}

// A writer whose commit is wrong will not send a better one, so the request ends now instead of at
// its deadline. A commit that contradicts an earlier one does not count: the first one does.
absl::Status LeaseTable::State::CheckCommit(const KvCommit& commit, const WriterProgress& writer,
                                            KvRefusal& refusal, std::vector<LeaseEvent>& events) {
  if (writer.commit.has_value()) {
    refusal = KvRefusal::kDuplicate;
    return absl::FailedPreconditionError("a second commit of one writer, with other contents");
  }
  absl::Status status;
  const size_t pages = slots[commit.slot].grant.pages.size();
  if (commit.page_count != static_cast<int>(pages)) {
    refusal = KvRefusal::kBadRange;
    status = absl::InternalError(
        absl::StrCat("commit of ", commit.page_count, " pages, the prompt has ", pages));
  } else if (commit.has_first_token != writer.draws) {
    refusal = KvRefusal::kBadCommit;
    status = absl::InternalError(writer.draws ? "the last stage committed without a first token"
                                              : "a stage that is not the last, or not its rank 0, "
                                                "committed a first token");
  }
  if (!status.ok()) Fail(commit.slot, FromPrefill(status, writer), events);
  return status;
}

std::vector<KvReceipt> LeaseTable::TakeReceipts() { return std::exchange(state_->receipts, {}); }

void LeaseTable::OnHeartbeat(const InstanceRef& writer, int64_t now_us) {
  const auto found = state_->heard.find(writer);
  if (found != state_->heard.end()) {
    found->second.last_us = std::max(found->second.last_us, now_us);
  }
}

void LeaseTable::Tick(int64_t now_us, std::vector<LeaseEvent>& events) {
  State& table = *state_;
  for (uint32_t index = 0; index < table.slots.size(); ++index) {
    Slot& slot = table.slots[index];
    if (slot.state != SlotState::kGranted) continue;
    if (now_us >= slot.grant.deadline_us) {
      Covered<"lease: KV is late for the deadline">();
      table.Fail(index,
                 WithLeg(absl::DeadlineExceededError("the prompt's KV was not complete in time"),
                         "decode", table.options.self.id),
                 events);
      continue;
    }
    for (const WriterProgress& writer : slot.writers) {
      if (writer.Complete() || now_us < table.SilenceUs(slot, writer)) continue;
      absl::Status silent = absl::UnavailableError(
          absl::StrCat("prefill stage ", writer.writer.instance.id, " has been silent for ",
                       table.options.writer_lease_us / 1000, " ms"));
      Covered<"lease: a writer is silent">();
      // Whom nothing came from since the grant may live, and be out of reach.
      if (table.SilenceUs(slot, writer) == slot.granted_us + table.options.writer_lease_us) {
        silent = Unconnected(std::move(silent));
      }
      table.Fail(index, table.FromPrefill(silent, writer), events);
      break;
    }
  }
}

int LeaseTable::active_grants() const {
  return static_cast<int>(std::count_if(state_->slots.begin(), state_->slots.end(),
                                        [](const Slot& slot) { return Revocable(slot.state); }));
}

void LeaseTable::State::Arrived(uint32_t index, const InFlight& run, const absl::Status& status,
                                uint64_t checksum, std::vector<LeaseEvent>& events) {
  WriterProgress& writer = slots[index].writers[run.writer];
  if (!status.ok()) {
    Covered<"lease: a transfer breaks">();
    Fail(index, FromPrefill(Annotate(status, "the transfer of KV broke"), writer), events);
    return;
  }
  if (checksum != run.checksum) {
    Covered<"lease: bytes change on the way">();
    Fail(index,
         FromPrefill(absl::DataLossError(absl::StrCat("KV of layers [", writer.writer.layers.begin,
                                                      ", ", writer.writer.layers.end, "), parts ",
                                                      run.part_begin, " to ", run.part_end - 1,
                                                      ", has another checksum than announced")),
                     writer),
         events);
    return;
  }
  for (size_t part = run.part_begin; part < run.part_end; ++part) {
    writer.parts[part] = PartState::kArrived;
  }
  writer.arrived += static_cast<int>(run.part_end - run.part_begin);
  writer.bytes += run.bytes;
  writer.checksum_sum += run.checksum;
  Settle(index, run.writer, events);
}

void LeaseTable::State::Settle(uint32_t index, size_t writer_index,
                               std::vector<LeaseEvent>& events) {
  Slot& slot = slots[index];
  const WriterProgress& settled = slot.writers[writer_index];
  if (settled.Complete()) {
    if (settled.commit->checksum_sum != settled.checksum_sum) {
      Fail(index,
           FromPrefill(absl::DataLossError("a writer's commit names other data than arrived"),
                       settled),
           events);
      return;
    }
    Tell(*settled.commit, KvReceiptKind::kComplete, 0);
  }
  uint64_t bytes = 0;
  for (const WriterProgress& writer : slot.writers) {
    if (!writer.Complete()) return;
    bytes += writer.bytes;
  }
  BATON_CHECK(!slot.wants_token || slot.first_token.has_value())
      << "every writer committed, none the first token";
  Covered<"lease: a grant is committed">();
  slot.state = SlotState::kCommitted;
  events.push_back(KvCommitted{index, slot.grant.generation, slot.first_token, bytes});
}

void LeaseTable::State::Tell(const KvCommit& commit, KvReceiptKind kind, uint32_t missing_parts) {
  receipts.push_back(KvReceipt{{commit.writer_id, commit.writer_incarnation},
                               commit.slot,
                               commit.generation,
                               commit.decode_incarnation,
                               kind,
                               missing_parts});
}

void LeaseTable::State::Fail(uint32_t index, absl::Status status, std::vector<LeaseEvent>& events) {
  Slot& slot = slots[index];
  slot.state = SlotState::kFailed;
  events.push_back(KvFailed{index, slot.grant.generation, std::move(status)});
}

void LeaseTable::State::Drain(uint32_t index, std::vector<LeaseEvent>& events) {
  Slot& slot = slots[index];
  slot.state = SlotState::kFree;
  events.push_back(KvDrained{index, slot.grant.generation});
}

void LeaseTable::State::Heard(uint64_t writer_incarnation, int64_t now_us) {
  for (auto& [writer, last] : heard) {
    if (writer.incarnation == writer_incarnation) last.last_us = std::max(last.last_us, now_us);
  }
}

void LeaseTable::State::ForgetWriters(const Slot& slot) {
  for (const WriterProgress& writer : slot.writers) {
    const auto found = heard.find(writer.writer.instance);
    BATON_CHECK(found != heard.end()) << "writer " << writer.writer.instance.id;
    if (--found->second.grants == 0) heard.erase(found);
  }
}

// Counted from the grant if the last sign of life is older: a writer with a new grant gets a whole
// lease for it, but its other grants are not extended.
int64_t LeaseTable::State::SilenceUs(const Slot& slot, const WriterProgress& writer) const {
  const auto found = heard.find(writer.writer.instance);
  const int64_t last_us = found == heard.end() ? 0 : found->second.last_us;
  return std::max(slot.granted_us, last_us) + options.writer_lease_us;
}

}  // namespace baton
