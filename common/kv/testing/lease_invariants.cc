// What must be true of a lease table after every event, and what else tests ask of it.
#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/kv/lease_state.h"

namespace baton {
namespace {

using lease_internal::PartState;
using lease_internal::Revocable;
using lease_internal::Slot;
using lease_internal::SlotState;
using lease_internal::WriterProgress;

absl::Status CheckSlot(const Slot& slot, int in_flight_runs, size_t in_flight_parts) {
  if (slot.in_flight != in_flight_runs) {
    return absl::InternalError(
        absl::StrCat("I1: ", in_flight_runs, " placements under way, counted ", slot.in_flight));
  }
  if (slot.state == SlotState::kFree && in_flight_runs > 0) {
    return absl::InternalError("I1: free while placements are under way");
  }
  if (slot.state == SlotState::kDraining && in_flight_runs == 0) {
    return absl::InternalError("I5: draining while nothing is under way");
  }
  size_t arriving = 0;
  bool complete = true;
  for (const WriterProgress& writer : slot.writers) {
    arriving += static_cast<size_t>(
        std::count(writer.parts.begin(), writer.parts.end(), PartState::kArriving));
    complete = complete && writer.Complete();
  }
  if (slot.state == SlotState::kGranted && arriving != in_flight_parts) {
    return absl::InternalError(
        absl::StrCat("I1: ", arriving, " parts arriving, ", in_flight_parts, " parts under way"));
  }
  if (slot.state == SlotState::kCommitted &&
      (!complete || slot.first_token.has_value() != slot.wants_token)) {
    return absl::InternalError("I3: committed before all KV and the first token were there");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LeaseTable::CheckInvariants() const {
  const State& table = *state_;
  std::vector<int> runs(table.slots.size());
  std::vector<size_t> parts(table.slots.size());
  for (const auto& [receipt, run] : table.in_flight) {
    if (table.slots[run.slot].grant.generation != run.generation) {
      return absl::InternalError(absl::StrCat("I4: placement ", receipt, " of generation ",
                                              run.generation, " is under way in slot ", run.slot,
                                              ", which has been granted again"));
    }
    ++runs[run.slot];
    parts[run.slot] += run.part_end - run.part_begin;
  }
  std::map<InstanceRef, int> grants;
  for (size_t i = 0; i < table.slots.size(); ++i) {
    const Slot& slot = table.slots[i];
    BATON_RETURN_IF_ERROR(Annotate(CheckSlot(slot, runs[i], parts[i]), absl::StrCat("slot ", i)));
    if (!Revocable(slot.state)) continue;
    for (const WriterProgress& writer : slot.writers) ++grants[writer.writer.instance];
  }
  for (const auto& [writer, heard] : table.heard) {
    if (heard.grants != grants[writer] || heard.grants == 0) {
      return absl::InternalError(absl::StrCat("writer ", writer.id, " has ", grants[writer],
                                              " grants, counted ", heard.grants));
    }
  }
  return absl::OkStatus();
}

int64_t LeaseTable::NextDeadlineUs() const {
  int64_t next = kNeverUs;
  for (const Slot& slot : state_->slots) {
    if (slot.state != SlotState::kGranted) continue;
    next = std::min(next, slot.grant.deadline_us);
    for (const WriterProgress& writer : slot.writers) {
      if (!writer.Complete()) next = std::min(next, state_->SilenceUs(slot, writer));
    }
  }
  return next;
}

bool LeaseTable::WriterComplete(uint32_t slot_index, const InstanceRef& instance) const {
  const Slot& slot = state_->slots[slot_index];
  return slot.state != SlotState::kGranted ||
         std::any_of(slot.writers.begin(), slot.writers.end(), [&](const WriterProgress& writer) {
           return writer.writer.instance == instance && writer.Complete();
         });
}

int LeaseTable::draining() const {
  return static_cast<int>(
      std::count_if(state_->slots.begin(), state_->slots.end(),
                    [](const Slot& slot) { return slot.state == SlotState::kDraining; }));
}

}  // namespace baton
