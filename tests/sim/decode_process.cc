#include "tests/sim/decode_process.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kLeaseTickUs = 250'000;

decode::DecodeLimits Limits(const Topology& topology, InstanceRef self) {
  decode::DecodeLimits limits;
  limits.self = std::move(self);
  limits.layout = topology.Layout();
  limits.page_count = topology.decode_pages;
  limits.max_running_requests = topology.max_running;
  limits.max_queued_requests = topology.max_queued;
  limits.max_context_tokens = topology.max_context_tokens;
  limits.vocab_size = kVocabulary;
  return limits;
}

LeaseTableOptions LeaseOptions(const Topology& topology, InstanceRef self) {
  LeaseTableOptions options;
  options.self = std::move(self);
  options.layout = topology.Layout();
  options.slots = static_cast<uint32_t>(topology.max_running);
  options.part_bytes = topology.PartBytes();
  return options;
}

}  // namespace

DecodeProcess::DecodeProcess(World& world, const Topology& topology, Oracle& oracle, int node,
                             uint64_t incarnation)
    : world_(world),
      topology_(topology),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      core_(Limits(topology, self_)),
      leases_(LeaseOptions(topology, self_)),
      witness_(world, topology, oracle, self_),
      lease_witness_(world, topology, self_),
      memory_(topology.decode_pages, topology.layers, topology.page_size) {
  router::WorkerInfo info = RouterProcess::Describe(topology, self_, Role::kDecode);
  info.layers = LayerRange{0, topology.layers};
  membership_ = std::make_unique<WorkerMembership>(
      world, node, std::move(info),
      [this] {
        const decode::DecodeLoad load = core_.load();
        return WorkerMembership::Status{!core_.draining(),
                                        router::WorkerLoad{load.running, load.waiting, 0,
                                                           load.free_pages, load.quarantined_pages},
                                        drain_ != nullptr && drain_->draining()};
      },
      [] {});
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{
          [this](int64_t deadline_us) { HandleCore(decode::DrainBegan{deadline_us}); },
          [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  LeaseTick();
}

void DecodeProcess::LeaseTick() {
  world_.After(node_, kLeaseTickUs, "lease tick", [this] {
    std::vector<LeaseEvent> events;
    lease_witness_.Ticked();
    leases_.Tick(world_.now_us(), events);
    lease_witness_.Raised(events);
    for (const LeaseEvent& event : events) {
      const auto* failed = std::get_if<KvFailed>(&event);
      if (failed == nullptr || !absl::IsUnavailable(failed->status) || !world_.calm()) continue;
      world_.Violate(absl::StrCat("a healthy writer is declared dead: ", failed->status.message()));
    }
    ToCore(events);
    LeaseTick();
  });
}

// What is overdue ends first and by itself, so that a witness knows what an event is to do.
void DecodeProcess::HandleCore(const decode::Event& event) {
  if (core_.NextDeadlineUs() <= world_.now_us()) HandleOne(decode::Tick{});
  HandleOne(event);
  ScheduleTick();
}

void DecodeProcess::HandleOne(const decode::Event& event) {
  witness_.Before(event);
  std::vector<decode::Action> actions;
  core_.Handle(event, world_.now_us(), actions);
  for (const int page : freed_.Take(core_.pool())) {
    if (const std::string used = memory_.Free(page); !used.empty()) {
      world_.Violate(absl::StrCat("I1: ", self_.id, ": ", used));
    }
  }
  witness_.After(actions, core_.load());
  const bool refused = std::any_of(actions.begin(), actions.end(), [](const auto& action) {
    return std::holds_alternative<decode::RefuseStream>(action);
  });
  if (const auto* opened = std::get_if<decode::StreamOpened>(&event); opened && !refused) {
    sessions_.at(opened->attempt_id).stream_call = opening_call_;
  }
  for (const decode::Action& action : actions) {
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
}

void DecodeProcess::ScheduleTick() {
  const int64_t due_us = std::max(core_.NextDeadlineUs(), world_.now_us());
  if (core_.NextDeadlineUs() == kNeverUs || due_us >= tick_us_) return;
  tick_us_ = due_us;
  world_.After(node_, due_us - world_.now_us(), "decode tick", [this, due_us] {
    if (tick_us_ == due_us) tick_us_ = kNeverUs;
    HandleCore(decode::Tick{});
  });
}

// ---- Calls ----

void DecodeProcess::Reserve(uint64_t call, const SimReserve& request) {
  if (topology_.IsStranger(node_)) {
    return world_.Violate(absl::StrCat(self_.id, " is paired with a chain of another model"));
  }
  const auto [found, fresh] = sessions_.try_emplace(request.attempt_id);
  if (!fresh) return world_.BreakCall(call);  // The shell refuses it; no router does this.
  found->second.reserve_call = call;
  const Stops stops = StopsOf(request.prompt_id);
  decode::ReserveRequested event;
  event.attempt_id = request.attempt_id;
  event.prompt_tokens = request.prompt_tokens;
  event.stop.max_tokens = request.max_tokens;
  event.stop.min_tokens = stops.min_tokens;
  event.stop.ignore_eos = stops.ignore_eos;
  event.stop.eos_ids = {kStopToken};
  if (stops.client_stop) event.stop.stop_ids = {kClientStopToken};
  event.writers = request.writers;
  event.deadline_us = world_.now_us() + request.timeout_us;
  witness_.Begin(request.prompt_id);
  HandleCore(event);
}

void DecodeProcess::Generate(uint64_t call, uint64_t attempt_id, uint64_t generation) {
  opening_call_ = call;
  HandleCore(decode::StreamOpened{attempt_id, generation});
  opening_call_ = 0;
}

void DecodeProcess::Abort(uint64_t attempt_id) {
  HandleCore(decode::AbortRequested{attempt_id, absl::CancelledError("the router aborted it")});
}

void DecodeProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  for (const auto& [attempt, session] : sessions_) {
    if (session.reserve_call != call && session.stream_call != call) continue;
    HandleCore(decode::AbortRequested{attempt, absl::CancelledError("the call broke")});
    return;
  }
}

void DecodeProcess::Perform(const decode::ReplyReserve& action) {
  const auto session = sessions_.find(action.attempt_id);
  const uint64_t call = std::exchange(session->second.reserve_call, 0);
  if (!action.ticket.ok()) sessions_.erase(session);
  world_.SendOnCall<RouterProcess>(call, node_, "reserve reply",
                                   [call, action](RouterProcess& router) {
                                     router.ReserveReply(call, action.attempt_id, action.ticket);
                                   });
}

void DecodeProcess::Perform(const decode::DeliverToken& action) {
  const uint64_t call = sessions_.at(action.attempt_id).stream_call;
  world_.SendOnCall<RouterProcess>(call, node_, "token", [call, action](RouterProcess& router) {
    router.Token(call, action.attempt_id, action.token);
  });
}

void DecodeProcess::Perform(const decode::RefuseStream& action) {
  const decode::Finish refusal{action.attempt_id, action.status};
  world_.SendOnCall<RouterProcess>(
      opening_call_, node_, "stream refused",
      [call = opening_call_, refusal](RouterProcess& router) { router.DecodeEnd(call, refusal); });
}

void DecodeProcess::Perform(const decode::Finish& action) {
  const auto session = sessions_.find(action.attempt_id);
  const uint64_t call = session->second.stream_call;
  sessions_.erase(session);
  world_.SendOnCall<RouterProcess>(
      call, node_, "decode finish",
      [call, action](RouterProcess& router) { router.DecodeEnd(call, action); });
}

// ---- Steps ----

DecodeProcess::Row DecodeProcess::RunRow(const decode::RunStep::Sequence& sequence) {
  Row row;
  row.attempt_id = sequence.attempt_id;
  row.sequence = &witness_.SequenceOf(sequence.attempt_id);
  row.pages = sequence.pages;
  row.position = sequence.position;
  row.draw = sequence.generated;
  row.out = Embed(sequence.token, sequence.position);
  memory_.Hold(row.pages);
  if (static_cast<int>(row.pages.size()) * topology_.page_size <= row.position) return row;
  memory_.Forward(row.pages, row.position, std::span(&row.out, 1));
  row.digest = memory_.Digest(row.pages, row.position + 1);
  if (row.out != row.sequence->X(row.position, topology_.layers)) {
    world_.Violate(absl::StrCat("I3: ", self_.id, " attends to foreign or missing KV: attempt ",
                                row.attempt_id, " at position ", row.position));
  }
  return row;
}

void DecodeProcess::Perform(const decode::RunStep& step) {
  if (!world_.violation().empty()) return;  // The witness has complained of this one.
  std::vector<Row> rows;
  for (const auto& sequence : step.sequences) {
    rows.push_back(RunRow(sequence));
    if (!world_.violation().empty()) return;
  }
  const int64_t cost_us = topology_.step_us + 50 * static_cast<int64_t>(rows.size()) +
                          world_.random().Between(0, topology_.step_us / 2);
  world_.After(node_, cost_us, "step done",
               [this, number = step.step, rows] { HandleCore(EndStep(number, rows)); });
}

// The kernel reads and writes until its end: what it has used must still be there.
decode::StepFinished DecodeProcess::EndStep(uint64_t step, const std::vector<Row>& rows) {
  decode::StepFinished done;
  done.step = step;
  const double fails = world_.faults().data_fail / 20;
  if (world_.random().Chance(fails)) done.status = absl::InternalError("the executor failed");
  for (const Row& row : rows) {
    if (memory_.Digest(row.pages, row.position + 1) != row.digest) {
      world_.Violate(absl::StrCat("I3: the pages of attempt ", row.attempt_id, " on ", self_.id,
                                  " change under a running step"));
    }
    memory_.LetGo(row.pages);
    if (world_.random().Chance(fails)) {
      if (world_.random().Chance(0.5)) continue;  // No output at all.
      done.outputs.push_back({row.attempt_id, absl::InternalError("a logit is not finite")});
      continue;
    }
    done.outputs.push_back(
        {row.attempt_id, DrawToken(row.out, row.sequence->inputs.prompt_id, row.draw)});
  }
  if (!done.status.ok()) done.outputs.clear();
  return done;
}

// ---- The lease table, on its own time line ----

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
  for (const KvReceipt& receipt : leases_.TakeReceipts()) {
    world_.SendData<PrefillProcess>(
        node_, NodeOf(receipt.writer.id), receipt.writer.incarnation, 0, "receipt", [] {},
        [receipt](PrefillProcess& stage, bool) { stage.ReceiveReceipt(receipt); },
        [](const absl::Status&) {});
  }
  for (const LeaseEvent& event : events) {
    if (const auto* committed = std::get_if<KvCommitted>(&event)) CheckHandedOver(*committed);
    core_inbox_us_ = std::max(core_inbox_us_, world_.now_us() + world_.random().Between(1, 60));
    world_.After(node_, core_inbox_us_ - world_.now_us(), "lease event", [this, event] {
      std::visit([this](const auto& e) { HandleCore(decode::Event(e)); }, event);
    });
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

// Payload pages [first, first + count) of the run.
void DecodeProcess::Place(const KvPlacement& placement, const std::vector<uint64_t>& payload,
                          size_t first, size_t count) {
  const size_t layer_bytes = topology_.Layout().BytesPerLayer();
  const int begin = placement.layers.begin + static_cast<int>(placement.offset_bytes / layer_bytes);
  const int end = begin + static_cast<int>(placement.page_bytes / layer_bytes);
  size_t next = first * static_cast<size_t>((end - begin) * topology_.page_size);
  for (size_t i = first; i < first + count; ++i) {
    for (int layer = begin; layer < end; ++layer) {
      for (int token = 0; token < topology_.page_size; ++token) {
        memory_.Set(placement.pages[i], layer, token, payload[next++]);
      }
    }
  }
}

void DecodeProcess::ReceiveKv(const KvDataHeader& header, const SimPayload& payload, bool corrupt) {
  KvRefusal refusal;
  const auto allowed = leases_.OnData(header, header.bytes, world_.now_us(), refusal);
  lease_witness_.Data(header, allowed);
  if (!world_.violation().empty()) return;
  if (!allowed.ok()) {
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
  const auto finish = [this, placement = *allowed, bytes, pages, fails] {
    if (!fails) Place(placement, *bytes, pages / 2, pages - pages / 2);
    memory_.LetGo(placement.pages);
    const uint64_t checksum = fails ? 0 : ChecksumOf(*bytes);
    std::vector<LeaseEvent> events;
    lease_witness_.Placed(placement.receipt, !fails, checksum);
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

void DecodeProcess::ReceiveCommit(const KvCommit& commit) {
  KvRefusal refusal;
  std::vector<LeaseEvent> events;
  const absl::Status status = leases_.OnCommit(commit, world_.now_us(), refusal, events);
  lease_witness_.Commit(commit, status);
  lease_witness_.Raised(events);
  if (!status.ok()) world_.Trace(node_, absl::StrCat("commit refused: ", status.message()));
  ToCore(events);
}

bool DecodeProcess::HasKv(const Ticket& ticket, LayerRange layers) const {
  const auto granted = granted_.find(ticket.slot);
  if (granted == granted_.end() || granted->second != ticket.generation) return true;
  return leases_.WriterComplete(ticket.slot, layers);
}

void DecodeProcess::ReceiveHeartbeat(const InstanceRef& writer) {
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

absl::Status DecodeProcess::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(membership_->CheckInvariants());
  BATON_RETURN_IF_ERROR(core_.CheckInvariants());
  return leases_.CheckInvariants();
}

bool DecodeProcess::AtRest(std::string& why_not) const {
  if (core_.AtRest() && leases_.AtRest()) return true;
  const decode::DecodeLoad load = core_.load();
  why_not =
      absl::StrCat("waiting ", load.waiting, " reserved ", load.reserved, " running ", load.running,
                   " owned pages ", load.owned_pages, " quarantined ", load.quarantined_pages,
                   " grants ", leases_.active_grants(), " draining ", leases_.draining());
  return false;
}

}  // namespace baton::sim
