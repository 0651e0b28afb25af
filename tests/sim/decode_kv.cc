#include "tests/sim/decode_kv.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/kv/head_routes.h"
#include "tests/sim/content.h"
#include "tests/sim/coverage.h"
#include "tests/sim/over_wire.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr double kSaidAgain = 0.03;
constexpr double kFormerLife = 0.3;

LeaseTableOptions LeaseOptions(const Topology& topology, InstanceRef self, int node) {
  const TensorRank rank = topology.DecodeRankOf(node);
  LeaseTableOptions options;
  options.self = std::move(self);
  options.layout = topology.DecodeLayoutOf(node);
  options.rank = rank;
  options.model_layers = topology.layers;
  if (!rank.alone()) options.model_kv_heads = topology.kv_heads;
  options.slots = static_cast<uint32_t>(topology.max_running);
  options.part_bytes = topology.PartBytes();
  options.writer_lease_us = topology.times.writer_lease_us;
  return options;
}

}  // namespace

DecodeKv::DecodeKv(World& world, const Topology& topology, int node, InstanceRef self,
                   SimMemory& memory, Hooks hooks)
    : world_(world),
      topology_(topology),
      node_(node),
      self_(std::move(self)),
      rank_(topology.DecodeRankOf(node)),
      layers_(topology.DecodeLayersOf(node)),
      hooks_(std::move(hooks)),
      leases_(LeaseOptions(topology, self_, node)),
      witness_(world, topology, self_, rank_, layers_),
      memory_(memory) {}

void DecodeKv::LeaseTick() {
  world_.After(node_, topology_.times.lease_tick_us, "lease tick", [this] {
    std::vector<LeaseEvent> events;
    // A heartbeat from a writer's other life does not show that this life is alive.
    for (const InstanceRef& writer : witness_.OpenWriters()) {
      if (!world_.random().Chance(kFormerLife)) continue;
      ReceiveHeartbeat({writer.id, writer.incarnation ^ 1});
    }
    witness_.Ticked();
    leases_.Tick(world_.now_us(), events);
    witness_.Raised(events);
    witness_.Sleeps(leases_.NextDeadlineUs());
    for (const LeaseEvent& event : events) {
      const auto* failed = std::get_if<KvFailed>(&event);
      if (failed == nullptr || !absl::IsUnavailable(failed->status) || !world_.calm()) continue;
      if (topology_.IsLonely(node_)) continue;
      world_.Violate(absl::StrCat("a healthy writer is declared dead: ", failed->status.message()));
    }
    ToCore(events);
    LeaseTick();
  });
}

void DecodeKv::Grant(KvGrant grant) {
  ToLeaseTable("grant", [this, grant](std::vector<LeaseEvent>&) {
    granted_[grant.generation] = grant.pages;
    for (const KvWriter& writer : grant.writers) Greet(writer.instance);
    witness_.Granted(grant);
    leases_.Grant(grant, world_.now_us());
  });
}

void DecodeKv::Revoke(uint32_t slot, uint64_t generation) {
  ToLeaseTable("revoke", [this, slot, generation](std::vector<LeaseEvent>& events) {
    granted_.erase(generation);
    LetIntrudersRevoke(slot, generation, events);
    witness_.Revoked(slot, generation);
    leases_.Revoke(slot, generation, events);
    if (world_.random().Chance(kSaidAgain)) leases_.Revoke(slot, generation, events);
  });
}

void DecodeKv::After(std::function<void()> then) {
  ToLeaseTable("after", [this, then](std::vector<LeaseEvent>&) {
    core_inbox_us_ = std::max(core_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
    world_.After(node_, core_inbox_us_ - world_.now_us(), "after", then);
  });
}

void DecodeKv::ToCore(const std::vector<LeaseEvent>& events) {
  const std::vector<KvReceipt> receipts = leases_.TakeReceipts();
  witness_.Told(receipts);
  for (const KvReceipt& receipt : receipts) Send(receipt);
  for (const LeaseEvent& event : events) {
    if (const auto* committed = std::get_if<KvCommitted>(&event)) CheckHandedOver(*committed);
    core_inbox_us_ = std::max(core_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
    const auto tell = [this, event] { hooks_.raise(event); };
    world_.After(node_, core_inbox_us_ - world_.now_us(), "lease event", tell);
    // Said again when the grant is over, or its slot another one's: of no effect.
    if (std::holds_alternative<KvDrained>(event) || !world_.random().Chance(kSaidAgain)) continue;
    world_.After(node_, core_inbox_us_ - world_.now_us() + world_.random().Between(0, 2'000'000),
                 "lease event again", tell);
  }
}

void DecodeKv::Greet(const InstanceRef& writer) {
  WorkerMembership& membership = *world_.process(node_)->worker();
  if (membership.Want({writer})) {
    world_.After(node_, kEndpointAgainUs, "greeting waits for its endpoint",
                 [this, writer] { Greet(writer); });
    return;
  }
  const std::optional<uint64_t> endpoint = membership.FindPeer(writer);
  if (!endpoint.has_value() || !membership.Lives(*endpoint)) return;
  membership.SendOver<PrefillProcess>(
      *endpoint, 0, "greeting", [] {},
      [self = self_](PrefillProcess& stage, bool) { stage.ReceiveGreeting(self); },
      [](const absl::Status&) {});
}

// A writer that can't be connected to asks again.
void DecodeKv::Send(const KvReceipt& receipt) {
  WorkerMembership& membership = *world_.process(node_)->worker();
  if (membership.Want({receipt.writer})) {
    world_.After(node_, kEndpointAgainUs, "receipt waits for its endpoint",
                 [this, receipt] { Send(receipt); });
    return;
  }
  const std::optional<uint64_t> endpoint = membership.FindPeer(receipt.writer);
  if (!endpoint.has_value() || !membership.Lives(*endpoint)) return;
  membership.SendOver<PrefillProcess>(
      *endpoint, 0, "receipt", [] {},
      [receipt](PrefillProcess& stage, bool) { stage.ReceiveReceipt(receipt); },
      [](const absl::Status&) {});
}

void DecodeKv::ToLeaseTable(const char* label, std::function<void(std::vector<LeaseEvent>&)> run) {
  lease_inbox_us_ = std::max(lease_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
  world_.After(node_, lease_inbox_us_ - world_.now_us(), label, [this, run = std::move(run)] {
    std::vector<LeaseEvent> events;
    run(events);
    witness_.Raised(events);
    ToCore(events);
  });
}

// Which bits of the slots of which layer a message's bytes of a page are, by the real table of
// runs, as decode's receiver asks for it.
std::vector<DecodeKv::Landing> DecodeKv::LandingsOf(const KvPlacement& placement) const {
  const int kv_heads = topology_.kv_heads;
  const IndexRange held = KvHeadsOf(kv_heads, rank_);
  const int sent_heads = placement.heads.size();
  const size_t head_bytes = topology_.Layout().WithHeads(1).BytesPerLayer() / 2;
  const std::vector<PageRun> runs =
      MessageRuns(placement.layers, placement.heads, {layers_, held.size(), head_bytes}, held.begin,
                  placement.offset_bytes, placement.page_bytes);
  // One run if all heads are sent; else one for the keys and one for the values of each layer.
  const size_t of_a_run = static_cast<size_t>(sent_heads) * head_bytes;
  const size_t first = placement.offset_bytes / of_a_run;
  const size_t last = (placement.offset_bytes + placement.page_bytes - 1) / of_a_run;
  if (runs.size() != (sent_heads == held.size() ? 1 : last - first + 1)) {
    world_.Violate(absl::StrCat(self_.id, " takes in a page in ", runs.size(), " runs"));
  }
  std::vector<Landing> landings;
  for (const PageRun& run : runs) {
    for (size_t done = 0; done < run.bytes; done += head_bytes) {
      const auto from = static_cast<int>((run.source_offset + done) / head_bytes);
      const auto to = static_cast<int>((run.destination_offset + done) / head_bytes);
      const uint64_t bits = HeadBits(kv_heads, to / held.size() % 2, held.begin + to % held.size());
      const uint64_t sent =
          HeadBits(kv_heads, from / sent_heads % 2, placement.heads.begin + from % sent_heads);
      if (bits != sent) world_.Violate(self_.id + " places a head where another one is");
      const int source = from / (2 * sent_heads) -
                         static_cast<int>(placement.offset_bytes / (2 * head_bytes)) / sent_heads;
      const int layer = to / (2 * held.size());
      if (landings.empty() || landings.back().layer != layer)
        landings.push_back({source, layer, 0});
      landings.back().bits |= bits;
    }
  }
  return landings;
}

// Payload pages [first, first + count) of the run.
void DecodeKv::Place(const KvPlacement& placement, const std::vector<uint64_t>& payload,
                     size_t first, size_t count) {
  const std::vector<Landing> landings = LandingsOf(placement);
  const auto page_size = static_cast<size_t>(topology_.page_size);
  const size_t layers =
      placement.page_bytes / topology_.Layout().WithHeads(placement.heads.size()).BytesPerLayer();
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

void DecodeKv::ReceiveKv(const KvDataHeader& header, const SimPayload& payload, bool corrupt,
                         bool again) {
  OverWire(world_, header);
  LetIntrudersWrite(header);
  KvRefusal refusal = KvRefusal::kBadCommit;  // Used by no data.
  const auto allowed = leases_.OnData(header, header.bytes, world_.now_us(), refusal);
  witness_.Data(header, again, allowed, refusal);
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
  for (const int page : allowed->pages) {
    if (!hooks_.in_step(page)) continue;
    return world_.Violate(absl::StrCat("I3: ", self_.id, " takes KV of generation ",
                                       header.generation, " into page ", page,
                                       ", which a running step uses"));
  }
  memory_.Hold(allowed->pages);
  Place(*allowed, *bytes, 0, pages / 2);
  const auto finish = [this, placement = *allowed, bytes, pages, fails, corrupt] {
    if (!fails) Place(placement, *bytes, pages / 2, pages - pages / 2);
    memory_.LetGo(placement.pages);
    const uint64_t checksum = fails ? 0 : ChecksumOf(*bytes);
    std::vector<LeaseEvent> events;
    witness_.Placed(placement.receipt, !fails, checksum, corrupt);
    leases_.OnPlaced(placement.receipt,
                     fails ? absl::UnavailableError("receive failed") : absl::OkStatus(), checksum,
                     world_.now_us(), events);
    witness_.Raised(events);
    ToCore(events);
  };
  if (placing_us == 0) {
    finish();
  } else {
    world_.After(node_, placing_us, "placed", finish);
  }
}

void DecodeKv::ReceiveCommit(const KvCommit& commit, bool again) {
  OverWire(world_, commit);
  LetIntrudersCommit(commit);
  KvRefusal refusal = KvRefusal::kBadLength;  // No commit has it.
  std::vector<LeaseEvent> events;
  const absl::Status status = leases_.OnCommit(commit, world_.now_us(), refusal, events);
  witness_.Commit(commit, again, status, refusal);
  witness_.Raised(events);
  if (!status.ok()) {
    CountRefusal(refusal);
    world_.Trace(node_, absl::StrCat("commit refused: ", status.message()));
  }
  ToCore(events);
  if (status.ok()) LetIntrudersContradict(commit);
}

bool DecodeKv::HasKv(const Ticket& ticket, const InstanceRef& writer) const {
  return !granted_.contains(ticket.generation) || leases_.WriterComplete(ticket.slot, writer);
}

void DecodeKv::ReceiveHeartbeat(const InstanceRef& writer) {
  OverWire(world_, KvHeartbeat{writer});
  witness_.Heartbeat(writer);
  leases_.OnHeartbeat(writer, world_.now_us());
}

void DecodeKv::CheckHandedOver(const KvCommitted& committed) {
  const Oracle::Sequence* const sequence = hooks_.sequence_of(committed.generation);
  if (sequence == nullptr) return;  // Revoked meanwhile.
  const uint64_t held = BitsOf(topology_.kv_heads, rank_).held;
  const std::vector<int>& pages = granted_.at(committed.generation);
  const int slots = static_cast<int>(pages.size()) * topology_.page_size;
  for (int position = 0; position < slots; ++position) {
    const int page = pages[static_cast<size_t>(position / topology_.page_size)];
    for (int layer = 0; layer < layers_.size(); ++layer) {
      // What lies behind the prompt was written for another sequence, and is cleared.
      const uint64_t expected = position < sequence->inputs.prompt_tokens
                                    ? sequence->X(position, layers_.begin + layer) & held
                                    : 0;
      if (memory_.Get(page, layer, position % topology_.page_size) == expected) continue;
      world_.Violate(absl::StrCat("I3: ", self_.id, " takes generation ", committed.generation,
                                  " for complete, and position ", position, " layer ", layer,
                                  " (page ", page, ") holds something else"));
      return;
    }
  }
}

}  // namespace baton::sim
