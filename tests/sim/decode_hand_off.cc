// The decode side of the hand-off in virtual time: the real lease table on its own time line, and
// the bytes that it lets in. Plays services/decode/kv_receiver.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/kv/head_routes.h"
#include "tests/sim/content.h"
#include "tests/sim/coverage.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/over_wire.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr double kSaidAgain = 0.03;
constexpr double kFormerLife = 0.3;

}  // namespace

void DecodeProcess::LeaseTick() {
  world_.After(node_, topology_.times.lease_tick_us, "lease tick", [this] {
    std::vector<LeaseEvent> events;
    // Of another life of a writer: no sign that this one lives.
    for (const InstanceRef& writer : lease_witness_.OpenWriters()) {
      if (!world_.random().Chance(kFormerLife)) continue;
      ReceiveHeartbeat({writer.id, writer.incarnation ^ 1});
    }
    lease_witness_.Ticked();
    leases_.Tick(world_.now_us(), events);
    lease_witness_.Raised(events);
    lease_witness_.Sleeps(leases_.NextDeadlineUs());
    for (const LeaseEvent& event : events) {
      const auto* failed = std::get_if<KvFailed>(&event);
      if (failed == nullptr || !absl::IsUnavailable(failed->status) || !world_.calm()) continue;
      world_.Violate(absl::StrCat("a healthy writer is declared dead: ", failed->status.message()));
    }
    ToCore(events);
    LeaseTick();
  });
}

void DecodeProcess::Perform(const decode::GrantKv& action) {
  ToLeaseTable("grant", [this, grant = action.grant](std::vector<LeaseEvent>&) {
    granted_[grant.generation] = grant.pages;
    lease_witness_.Granted(grant);
    leases_.Grant(grant, world_.now_us());
  });
}

void DecodeProcess::Perform(const decode::RevokeKv& action) {
  ToLeaseTable("revoke", [this, action](std::vector<LeaseEvent>& events) {
    granted_.erase(action.generation);
    lease_witness_.Revoked(action.slot, action.generation);
    leases_.Revoke(action.slot, action.generation, events);
  });
}

void DecodeProcess::ToCore(const std::vector<LeaseEvent>& events) {
  const std::vector<KvReceipt> receipts = leases_.TakeReceipts();
  lease_witness_.Told(receipts);
  for (const KvReceipt& receipt : receipts) {
    // A writer that is not connected asks again when it is.
    const std::optional<uint64_t> endpoint = membership_->FindPeer(receipt.writer);
    if (!endpoint.has_value() || !membership_->Lives(*endpoint)) continue;
    world_.SendData<PrefillProcess>(
        node_, NodeOf(receipt.writer.id), receipt.writer.incarnation, 0, "receipt", [] {},
        [receipt](PrefillProcess& stage, bool) { stage.ReceiveReceipt(receipt); },
        [](const absl::Status&) {});
  }
  for (const LeaseEvent& event : events) {
    if (const auto* committed = std::get_if<KvCommitted>(&event)) CheckHandedOver(*committed);
    core_inbox_us_ = std::max(core_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
    const auto tell = [this, event] {
      std::visit([this](const auto& e) { HandleCore(decode::Event(e)); }, event);
    };
    world_.After(node_, core_inbox_us_ - world_.now_us(), "lease event", tell);
    // Said again when the grant is over, or its slot another one's: of no effect.
    if (std::holds_alternative<KvDrained>(event) || !world_.random().Chance(kSaidAgain)) continue;
    world_.After(node_, core_inbox_us_ - world_.now_us() + world_.random().Between(0, 2'000'000),
                 "lease event again", tell);
  }
}

void DecodeProcess::ToLeaseTable(const char* label,
                                 std::function<void(std::vector<LeaseEvent>&)> run) {
  lease_inbox_us_ = std::max(lease_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
  world_.After(node_, lease_inbox_us_ - world_.now_us(), label, [this, run = std::move(run)] {
    std::vector<LeaseEvent> events;
    run(events);
    lease_witness_.Raised(events);
    ToCore(events);
  });
}

// Which bits of the slots of which layer a message's bytes of a page are, by the real table of
// runs, as decode's receiver asks for it.
std::vector<DecodeProcess::Landing> DecodeProcess::LandingsOf(const KvPlacement& placement) const {
  const KvLayout layout = topology_.Layout();
  const int own_heads = placement.heads.size();
  const size_t head_bytes = layout.WithHeads(1).BytesPerLayer() / 2;
  const HeadRoute route{.heads = placement.heads, .destination_place = placement.heads.begin};
  const std::vector<PageRun> runs =
      CutRuns(PageRuns(route, {placement.layers, own_heads, head_bytes},
                       {{0, layout.layers}, layout.kv_heads, head_bytes}),
              placement.offset_bytes, placement.page_bytes);
  std::vector<Landing> landings;
  for (const PageRun& run : runs) {
    for (size_t done = 0; done < run.bytes; done += head_bytes) {
      const auto from = static_cast<int>((run.source_offset + done) / head_bytes);
      const auto to = static_cast<int>((run.destination_offset + done) / head_bytes);
      const uint64_t bits =
          HeadBits(layout.kv_heads, to / layout.kv_heads % 2, to % layout.kv_heads);
      const uint64_t sent =
          HeadBits(layout.kv_heads, from / own_heads % 2, placement.heads.begin + from % own_heads);
      if (bits != sent) world_.Violate(self_.id + " places a head where another one is");
      const int source = from / (2 * own_heads) -
                         static_cast<int>(placement.offset_bytes / (2 * head_bytes)) / own_heads;
      const int layer = to / (2 * layout.kv_heads);
      if (landings.empty() || landings.back().layer != layer)
        landings.push_back({source, layer, 0});
      landings.back().bits |= bits;
    }
  }
  return landings;
}

// Payload pages [first, first + count) of the run.
void DecodeProcess::Place(const KvPlacement& placement, const std::vector<uint64_t>& payload,
                          size_t first, size_t count) {
  const std::vector<Landing> landings = LandingsOf(placement);
  const auto page_size = static_cast<size_t>(topology_.page_size);
  const size_t layers = placement.page_bytes / topology_.RankLayout().BytesPerLayer();
  for (size_t i = first; i < first + count; ++i) {
    for (const Landing& landing : landings) {
      const uint64_t* const slots =
          &payload[(i * layers + static_cast<size_t>(landing.source)) * page_size];
      for (int token = 0; token < topology_.page_size; ++token) {
        memory_.Merge(placement.pages[i], landing.layer, token, slots[token], landing.bits);
      }
    }
  }
}

void DecodeProcess::ReceiveKv(const KvDataHeader& header, const SimPayload& payload, bool corrupt,
                              bool again) {
  OverWire(world_, header);
  KvRefusal refusal;
  const auto allowed = leases_.OnData(header, header.bytes, world_.now_us(), refusal);
  lease_witness_.Data(header, again, allowed);
  if (!world_.violation().empty()) return;
  if (!allowed.ok()) {
    CountRefusal(refusal);
    world_.Trace(node_, absl::StrCat("refused: ", allowed.status().message()));
    return;
  }
  SimPayload bytes = payload;
  if (corrupt) {
    std::vector<uint64_t> damaged = *payload;
    damaged[world_.random().Below(damaged.size())] ^= 0x5555;
    bytes = std::make_shared<const std::vector<uint64_t>>(std::move(damaged));
  }
  // Placing takes time (rendezvous): the bytes land page by page until OnPlaced.
  const int64_t placing_us = world_.random().Chance(0.2) ? world_.random().Between(100, 20'000) : 0;
  const bool fails = world_.random().Chance(world_.faults().data_fail);
  const size_t pages = allowed->pages.size();
  memory_.Hold(allowed->pages);
  Place(*allowed, *bytes, 0, pages / 2);
  const auto finish = [this, placement = *allowed, bytes, pages, fails, corrupt] {
    if (!fails) Place(placement, *bytes, pages / 2, pages - pages / 2);
    memory_.LetGo(placement.pages);
    const uint64_t checksum = fails ? 0 : ChecksumOf(*bytes);
    std::vector<LeaseEvent> events;
    lease_witness_.Placed(placement.receipt, !fails, checksum, corrupt);
    leases_.OnPlaced(placement.receipt,
                     fails ? absl::UnavailableError("receive failed") : absl::OkStatus(), checksum,
                     world_.now_us(), events);
    lease_witness_.Raised(events);
    ToCore(events);
  };
  if (placing_us == 0) {
    finish();
  } else {
    world_.After(node_, placing_us, "placed", finish);
  }
}

void DecodeProcess::ReceiveCommit(const KvCommit& commit, bool again) {
  OverWire(world_, commit);
  KvRefusal refusal;
  std::vector<LeaseEvent> events;
  const absl::Status status = leases_.OnCommit(commit, world_.now_us(), refusal, events);
  lease_witness_.Commit(commit, again, status);
  lease_witness_.Raised(events);
  if (!status.ok()) {
    CountRefusal(refusal);
    world_.Trace(node_, absl::StrCat("commit refused: ", status.message()));
  }
  ToCore(events);
}

bool DecodeProcess::HasKv(const Ticket& ticket, const InstanceRef& writer) const {
  return !granted_.contains(ticket.generation) || leases_.WriterComplete(ticket.slot, writer);
}

void DecodeProcess::ReceiveHeartbeat(const InstanceRef& writer) {
  OverWire(world_, KvHeartbeat{writer});
  lease_witness_.Heartbeat(writer);
  leases_.OnHeartbeat(writer, world_.now_us());
}

void DecodeProcess::CheckHandedOver(const KvCommitted& committed) {
  const Oracle::Sequence* const sequence = witness_.SequenceOfGrant(committed.generation);
  if (sequence == nullptr) return;  // Revoked meanwhile.
  const std::vector<int>& pages = granted_.at(committed.generation);
  const int slots = static_cast<int>(pages.size()) * topology_.page_size;
  for (int position = 0; position < slots; ++position) {
    const int page = pages[static_cast<size_t>(position / topology_.page_size)];
    for (int layer = 0; layer < topology_.layers; ++layer) {
      // What lies behind the prompt was written for somebody else, and is cleared.
      const uint64_t expected =
          position < sequence->inputs.prompt_tokens ? sequence->X(position, layer) : 0;
      if (memory_.Get(page, layer, position % topology_.page_size) == expected) continue;
      world_.Violate(absl::StrCat("I3: ", self_.id, " takes generation ", committed.generation,
                                  " for complete, and position ", position, " layer ", layer,
                                  " (page ", page, ") holds something else"));
      return;
    }
  }
}

}  // namespace baton::sim
