// The checks of a header before a byte is placed.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/kv/lease_state.h"

namespace baton {

using lease_internal::PartState;
using lease_internal::Revocable;
using lease_internal::Slot;
using lease_internal::SlotState;
using lease_internal::WriterProgress;

const char* KvRefusalName(KvRefusal refusal) {
  switch (refusal) {
    case KvRefusal::kUnknownSlot:
      return "unknown_slot";
    case KvRefusal::kStaleGeneration:
      return "stale_generation";
    case KvRefusal::kWrongIncarnation:
      return "wrong_incarnation";
    case KvRefusal::kNotAWriter:
      return "not_a_writer";
    case KvRefusal::kBadRange:
      return "bad_range";
    case KvRefusal::kBadLength:
      return "bad_length";
    case KvRefusal::kDuplicate:
      return "duplicate";
    case KvRefusal::kConsumed:
      return "consumed";
    case KvRefusal::kBadCommit:
      return "bad_commit";
  }
  return "unknown";
}

template <typename Message>
absl::StatusOr<LeaseTable::State::Place> LeaseTable::State::Locate(const Message& message,
                                                                   KvRefusal& refusal) {
  if (message.decode_incarnation != options.self.incarnation) {
    refusal = KvRefusal::kWrongIncarnation;
    return absl::FailedPreconditionError("meant for another incarnation of this decode service");
  }
  if (message.slot >= slots.size() || slots[message.slot].grant.generation == 0) {
    refusal = KvRefusal::kUnknownSlot;
    return absl::FailedPreconditionError(absl::StrCat("slot ", message.slot, " was never granted"));
  }
  Slot& slot = slots[message.slot];
  if (message.generation != slot.grant.generation || !Revocable(slot.state)) {
    refusal = KvRefusal::kStaleGeneration;
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", message.generation, " of slot ", message.slot, " is over"));
  }
  if (slot.state != SlotState::kGranted) {
    refusal = KvRefusal::kConsumed;
    return absl::FailedPreconditionError("the grant has been committed or has failed");
  }
  const auto writer = std::find_if(
      slot.writers.begin(), slot.writers.end(), [&message](const WriterProgress& candidate) {
        return candidate.writer.layers == message.layers &&
               candidate.writer.instance.incarnation == message.writer_incarnation;
      });
  if (writer != slot.writers.end()) {
    return Place{&slot, static_cast<size_t>(writer - slot.writers.begin())};
  }
  refusal = KvRefusal::kNotAWriter;
  return absl::FailedPreconditionError(absl::StrCat("no writer of this grant has layers [",
                                                    message.layers.begin, ", ", message.layers.end,
                                                    ") and this incarnation"));
}

template absl::StatusOr<LeaseTable::State::Place> LeaseTable::State::Locate(const KvDataHeader&,
                                                                            KvRefusal&);
template absl::StatusOr<LeaseTable::State::Place> LeaseTable::State::Locate(const KvCommit&,
                                                                            KvRefusal&);

absl::Status LeaseTable::State::CheckRun(const Slot& slot, const WriterProgress& writer,
                                         const KvDataHeader& header, size_t payload_bytes,
                                         KvRefusal& refusal) const {
  const auto page_total = static_cast<int64_t>(slot.grant.pages.size());
  if (header.first_page < slot.grant.first_page || header.page_count < 1 ||
      int64_t{header.first_page} + header.page_count > page_total) {
    refusal = KvRefusal::kBadRange;
    return absl::InvalidArgumentError(
        absl::StrCat(header.page_count, " pages from ", header.first_page, " on, the grant has [",
                     slot.grant.first_page, ", ", page_total, ") of the prompt"));
  }
  const bool in_parts = writer.parts_per_page > 1;
  if (header.part < 0 || header.part >= writer.parts_per_page ||
      (in_parts && header.page_count != 1)) {
    refusal = KvRefusal::kBadRange;
    return absl::InvalidArgumentError(absl::StrCat("part ", header.part, " of ", header.page_count,
                                                   " pages of ", writer.parts_per_page, " parts"));
  }
  const uint64_t expected =
      in_parts ? std::min(options.part_bytes,
                          writer.band_bytes - static_cast<size_t>(header.part) * options.part_bytes)
               : static_cast<uint64_t>(header.page_count) * writer.band_bytes;
  if (header.bytes != expected || payload_bytes != expected) {
    refusal = KvRefusal::kBadLength;
    return absl::InvalidArgumentError(absl::StrCat("announces ", header.bytes, " bytes, has ",
                                                   payload_bytes, ", the run takes ", expected));
  }
  const auto [begin, end] = writer.PartsOf(header);
  for (size_t part = begin; part < end; ++part) {
    if (writer.parts[part] == PartState::kMissing) continue;
    refusal = KvRefusal::kDuplicate;
    return absl::FailedPreconditionError(
        absl::StrCat("part ", part, " of the prompt's KV has arrived or is arriving"));
  }
  return absl::OkStatus();
}

}  // namespace baton
