#include "tests/sim/decode_process.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int kMaxContext = 4096;
constexpr int kVocabulary = 1000;
constexpr int64_t kLeaseTickUs = 250'000;

decode::DecodeLimits Limits(const Topology& topology, InstanceRef self) {
  decode::DecodeLimits limits;
  limits.self = std::move(self);
  limits.layout = topology.Layout();
  limits.page_count = topology.decode_pages;
  limits.max_running_requests = topology.max_running;
  limits.max_queued_requests = topology.max_queued;
  limits.max_context_tokens = kMaxContext;
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

// Stands for XXH3 over the placed bytes; wire.cc's checksum is over real ones.
uint64_t ChecksumOf(const std::vector<uint64_t>& content) {
  uint64_t sum = 0;
  for (const uint64_t value : content) sum = Mix64(sum ^ value);
  return sum;
}

}  // namespace

DecodeProcess::DecodeProcess(World& world, const Topology& topology, int node, uint64_t incarnation)
    : world_(world),
      topology_(topology),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      core_(Limits(topology, self_)),
      leases_(LeaseOptions(topology, self_)),
      pages_(static_cast<size_t>(topology.decode_pages),
             std::vector<uint64_t>(static_cast<size_t>(topology.layers), 0)) {
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
    leases_.Tick(world_.now_us(), events);
    for (const LeaseEvent& event : events) {
      const auto* failed = std::get_if<KvFailed>(&event);
      if (failed == nullptr || !absl::IsUnavailable(failed->status) || !world_.calm()) continue;
      world_.Violate(absl::StrCat("a healthy writer is declared dead: ", failed->status.message()));
    }
    ToCore(events);
    LeaseTick();
  });
}

void DecodeProcess::HandleCore(const decode::Event& event) {
  std::vector<decode::Action> actions;
  core_.Handle(event, world_.now_us(), actions);
  for (const decode::Action& action : actions) Perform(action);
  ScheduleTick();
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

void DecodeProcess::Reserve(uint64_t call, const SimReserve& request) {
  if (topology_.IsStranger(node_)) {
    return world_.Violate(absl::StrCat(self_.id, " is paired with a chain of another model"));
  }
  Prompt& prompt = prompts_[request.attempt_id];
  prompt.prompt_id = request.prompt_id;
  prompt.tokens = request.prompt_tokens;
  prompt.reserve_call = call;
  decode::ReserveRequested event;
  event.attempt_id = request.attempt_id;
  event.prompt_tokens = request.prompt_tokens;
  event.stop.max_tokens = request.max_tokens;
  event.stop.eos_ids = {kStopToken};
  event.writers = request.writers;
  event.deadline_us = world_.now_us() + request.timeout_us;
  HandleCore(event);
}

void DecodeProcess::Generate(uint64_t call, uint64_t attempt_id, uint64_t generation) {
  prompts_[attempt_id].stream_call = call;
  HandleCore(decode::StreamOpened{attempt_id, generation});
}

void DecodeProcess::Abort(uint64_t attempt_id) {
  HandleCore(decode::AbortRequested{attempt_id, absl::CancelledError("the router aborted it")});
}

void DecodeProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  for (const auto& [attempt, prompt] : prompts_) {
    if (prompt.reserve_call != call && prompt.stream_call != call) continue;
    HandleCore(decode::AbortRequested{attempt, absl::CancelledError("the call broke")});
    return;
  }
}

void DecodeProcess::Perform(const decode::Action& action) {
  std::visit(
      [this](const auto& act) {
        using T = std::decay_t<decltype(act)>;
        if constexpr (std::is_same_v<T, decode::ReplyReserve>) {
          const uint64_t call = std::exchange(prompts_[act.attempt_id].reserve_call, 0);
          world_.SendOnCall<RouterProcess>(call, node_, "reserve reply",
                                           [call, act](RouterProcess& router) {
                                             router.ReserveReply(call, act.attempt_id, act.ticket);
                                           });
        } else if constexpr (std::is_same_v<T, decode::GrantKv>) {
          ToLeaseTable("grant", [this, grant = act.grant](std::vector<LeaseEvent>&) {
            granted_[grant.slot] = grant.generation;
            leases_.Grant(grant, world_.now_us());
          });
        } else if constexpr (std::is_same_v<T, decode::RevokeKv>) {
          ToLeaseTable("revoke", [this, act](std::vector<LeaseEvent>& events) {
            if (granted_[act.slot] == act.generation) granted_[act.slot] = 0;
            leases_.Revoke(act.slot, act.generation, events);
          });
        } else if constexpr (std::is_same_v<T, decode::DeliverToken>) {
          const uint64_t call = prompts_[act.attempt_id].stream_call;
          world_.SendOnCall<RouterProcess>(call, node_, "token",
                                           [call, act](RouterProcess& router) {
                                             router.Token(call, act.attempt_id, act.token);
                                           });
        } else if constexpr (std::is_same_v<T, decode::RefuseStream>) {
          const uint64_t call = prompts_[act.attempt_id].stream_call;
          const decode::Finish refusal{act.attempt_id, act.status};
          world_.SendOnCall<RouterProcess>(
              call, node_, "stream refused",
              [call, refusal](RouterProcess& router) { router.DecodeEnd(call, refusal); });
        } else if constexpr (std::is_same_v<T, decode::Finish>) {
          const uint64_t call = prompts_[act.attempt_id].stream_call;
          world_.SendOnCall<RouterProcess>(
              call, node_, "decode finish",
              [call, act](RouterProcess& router) { router.DecodeEnd(call, act); });
        } else {
          RunStep(act);
        }
      },
      action);
}

void DecodeProcess::CheckContext(const decode::RunStep::Sequence& sequence) {
  const Prompt& prompt = prompts_[sequence.attempt_id];
  const int prompt_pages = topology_.Layout().PagesFor(prompt.tokens);
  if (static_cast<int>(sequence.pages.size()) <
      topology_.Layout().PagesFor(sequence.position + 1)) {
    world_.Violate("a decode step has too few pages for its position");
    return;
  }
  for (int page = 0; page < prompt_pages; ++page) {
    const int tokens = TokensInPage(prompt.tokens, page, topology_.page_size);
    for (int layer = 0; layer < topology_.layers; ++layer) {
      const uint64_t expected = KvContent(prompt.prompt_id, page, tokens, layer);
      if (pages_[sequence.pages[page]][layer] == expected) continue;
      world_.Violate(absl::StrCat("I3: ", self_.id, " attends to foreign or missing KV: attempt ",
                                  sequence.attempt_id, " page ", page, " layer ", layer));
      return;
    }
  }
  if (sequence.token != AnswerToken(prompt.prompt_id, sequence.generated - 1)) {
    world_.Violate("a decode step feeds a token that is not the request's last one");
  }
}

void DecodeProcess::RunStep(const decode::RunStep& step) {
  std::set<int> used;
  for (const auto& sequence : step.sequences) {
    CheckContext(sequence);
    for (const int page : sequence.pages) {
      if (!used.insert(page).second) world_.Violate("two sequences of a step share a page");
    }
  }
  const int64_t cost_us =
      300 + 50 * static_cast<int64_t>(step.sequences.size()) + world_.random().Between(0, 200);
  const bool fails = world_.random().Chance(world_.faults().data_fail / 20);
  world_.After(node_, cost_us, "step done", [this, step, fails] {
    decode::StepFinished done;
    done.step = step.step;
    if (fails) done.status = absl::InternalError("the executor failed");
    for (const auto& sequence : step.sequences) {
      CheckContext(sequence);  // Still there: nobody may have reused a page under a running step.
      SampledToken token;
      token.token = AnswerToken(prompts_[sequence.attempt_id].prompt_id, sequence.generated);
      done.outputs.push_back({sequence.attempt_id, token});
    }
    HandleCore(done);
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
    ToCore(events);
  });
}

void DecodeProcess::ReceiveKv(const KvDataHeader& header, const std::vector<uint64_t>& content,
                              bool corrupt) {
  KvRefusal refusal;
  const auto placement = leases_.OnData(header, header.bytes, world_.now_us(), refusal);
  if (!placement.ok()) {
    world_.Trace(node_, absl::StrCat("refused: ", placement.status().message()));
    return;
  }
  if (granted_[header.slot] != header.generation) {
    world_.Violate(absl::StrCat("I4: ", self_.id, " places data of a stale generation into slot ",
                                header.slot));
    return;
  }
  // Placing takes time (rendezvous): the bytes land page by page until OnPlaced.
  const int64_t placing_us = world_.random().Chance(0.2) ? world_.random().Between(100, 20'000) : 0;
  const bool fails = world_.random().Chance(world_.faults().data_fail);
  const auto finish = [this, placement = *placement, content, corrupt, fails] {
    size_t next = 0;
    const size_t layer_bytes = topology_.Layout().BytesPerLayer();
    const int begin =
        placement.layers.begin + static_cast<int>(placement.offset_bytes / layer_bytes);
    const int end = begin + static_cast<int>(placement.page_bytes / layer_bytes);
    for (const int page : placement.pages) {
      for (int layer = begin; layer < end; ++layer) {
        pages_[page][layer] = content[next++] ^ (corrupt ? 0x5555 : 0);
      }
    }
    std::vector<uint64_t> placed = content;
    if (corrupt) placed[0] ^= 0x5555;
    std::vector<LeaseEvent> events;
    leases_.OnPlaced(placement.receipt,
                     fails ? absl::UnavailableError("receive failed") : absl::OkStatus(),
                     ChecksumOf(placed), world_.now_us(), events);
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
  if (!status.ok()) world_.Trace(node_, absl::StrCat("commit refused: ", status.message()));
  ToCore(events);
}

bool DecodeProcess::HasKv(const Ticket& ticket, LayerRange layers) const {
  const auto granted = granted_.find(ticket.slot);
  if (granted == granted_.end() || granted->second != ticket.generation) return true;
  return leases_.WriterComplete(ticket.slot, layers);
}

void DecodeProcess::ReceiveHeartbeat(const InstanceRef& writer) {
  leases_.OnHeartbeat(writer, world_.now_us());
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
