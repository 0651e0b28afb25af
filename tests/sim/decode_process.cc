#include "tests/sim/decode_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/link_intruders.h"
#include "tests/sim/router_process.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

constexpr double kStaleStream = 0.1;
constexpr double kOutOfOrder = 0.2;

decode::DecodeLimits Limits(const Topology& topology, InstanceRef self) {
  decode::DecodeLimits limits;
  limits.self = std::move(self);
  limits.layout = topology.DecodeLayout();
  limits.ranks = topology.decode_ranks;
  if (limits.ranks > 1) limits.kv_heads = topology.kv_heads;
  limits.page_count = topology.PagesOf(NodeOf(limits.self.id));
  limits.max_running_requests = topology.max_running;
  limits.max_queued_requests = topology.max_queued;
  limits.max_context_tokens = topology.max_context_tokens;
  if (topology.reserved_tokens > 0) limits.reserved_decode_tokens = topology.reserved_tokens;
  limits.vocab_size = kVocabulary;
  limits.stream_lease_us = topology.times.stream_lease_us;
  limits.remembered_aborts = topology.remembered;
  limits.kept_outcomes = topology.remembered;
  return limits;
}

}  // namespace

DecodeProcess::DecodeProcess(World& world, const Topology& topology, Oracle& oracle,
                             StageGroups& groups, int node, uint64_t incarnation)
    : world_(world),
      topology_(topology),
      groups_(groups),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      core_(Limits(topology, self_)),
      witness_(world, topology, oracle, self_),
      account_(world, topology, self_),
      memory_(topology.PagesOf(node), topology.layers, topology.page_size,
              BitsOf(topology.kv_heads, topology.DecodeRankOf(node))),
      group_(world, topology, groups, node),
      steps_(world, topology, groups, node, self_.id, memory_, group_,
             {[this](uint64_t attempt) { return &witness_.SequenceOf(attempt); },
              [this](const DecodeSteps::Ended& ended) { HandleCore(FinishStep(ended)); }}),
      kv_(world, topology, node, self_, memory_,
          {[this](const LeaseEvent& event) { HandleLease(event); },
           [this](uint64_t generation) { return witness_.SequenceOfGrant(generation); },
           [this](int page) { return steps_.Uses(page); }}) {
  if (several()) {
    const links::WiringOptions wiring{DecodePlaceOf(topology, node, self_), topology.PagesOf(node),
                                      1, 1, topology.times.chain};
    wiring_.emplace(wiring);
    wiring_witness_.emplace(world, wiring);
  }
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_, Role::kDecode),
      [this] {
        const decode::DecodeLoad load = core_.load();
        return WorkerMembership::Status{
            !core_.draining() && core_.joined(),
            router::WorkerLoad{load.running + load.reserved, load.waiting, 0, load.free_pages,
                               load.quarantined_pages},
            drain_ != nullptr && drain_->draining()};
      },
      [this] {
        if (!several()) return;
        const links::ChainPlace place = DecodePlaceOf(topology_, node_, self_);
        wiring_events_.Raise(links::ViewSeen{WithImpostors(world_, place, membership_->peers())});
      });
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{
          [this](int64_t deadline_us) { HandleCore(decode::DrainBegan{deadline_us}); },
          [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  kv_.Start();
}

// What is overdue ends first and by itself, so that a witness knows what an event is to do.
void DecodeProcess::HandleInTurn(const decode::Event& event) {
  if (core_.NextDeadlineUs() <= world_.now_us()) HandleOne(decode::Tick{});
  HandleOne(event);
  ScheduleTick();
}

void DecodeProcess::HandleOne(const decode::Event& event) {
  if (!world_.violation().empty()) return;  // This event has already violated something.
  witness_.Before(event);
  std::vector<decode::Action> actions;
  core_.Handle(event, world_.now_us(), actions);
  for (const int page : freed_.Take(core_.pool())) {
    if (const std::string used = memory_.Free(page); !used.empty()) {
      world_.Violate(absl::StrCat("I1: ", self_.id, ": ", used));
    }
  }
  witness_.After(actions, core_);
  if (!world_.violation().empty()) return;
  account_.Saw(event, actions, core_);
  if (!world_.violation().empty()) return;
  const bool refused = std::any_of(actions.begin(), actions.end(), [](const auto& action) {
    return std::holds_alternative<decode::RefuseStream>(action);
  });
  if (const auto* opened = std::get_if<decode::StreamOpened>(&event); opened && !refused) {
    sessions_.at(opened->attempt_id).stream_call = opening_call_;
  }
  for (const decode::Action& action : actions) {
    TouchBy(world_, node_, action);
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
}

void DecodeProcess::ScheduleTick() {
  const int64_t due_us = std::max(core_.NextDeadlineUs(), world_.now_us());
  if (core_.NextDeadlineUs() == kNeverUs || due_us >= tick_us_) return;
  tick_us_ = due_us;
  const int64_t late_us = world_.DrawLoopLateness();
  world_.After(node_, due_us - world_.now_us() + late_us, "decode tick", [this, due_us] {
    if (tick_us_ == due_us) tick_us_ = kNeverUs;
    HandleCore(decode::Tick{});
  });
}

// ---- Calls ----

void DecodeProcess::Reserve(uint64_t call, const SimReserve& request) {
  if (topology_.IsStranger(node_)) {
    return world_.Violate(absl::StrCat(self_.id, " is paired with a chain of another model"));
  }
  if (topology_.IsLonely(node_)) {
    return world_.Violate(absl::StrCat(self_.id, " is paired and nobody is connected to it"));
  }
  const auto [found, fresh] = sessions_.try_emplace(request.attempt_id);
  if (!fresh) return world_.BreakCall(call);  // The shell refuses it; no router does this.
  // Aborts are calls of their own, and may overtake.
  if (world_.random().Chance(world_.faults().control_drop)) Abort(request.attempt_id);
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
  // Any order will do.
  if (world_.random().Chance(kOutOfOrder)) {
    std::rotate(event.writers.begin(), event.writers.begin() + 1, event.writers.end());
  }
  event.deadline_us = world_.now_us() + request.timeout_us;
  event.resumes = request.resumes;
  witness_.Begin(request.prompt_id);
  LetIntrudersReserve(event);
  const auto held = [this] { return core_.load().waiting + core_.load().reserved; };
  const int before = held();
  HandleCore(event);
  if (held() == before + 1) {
    ExpectRefused(event, absl::StatusCode::kAlreadyExists, "is held already");
  }
  // A stream without a ticket: who waits has none yet.
  const std::optional<uint64_t> generation = witness_.WaitsWith(event.attempt_id);
  if (generation.has_value() && world_.random().Chance(kStaleStream)) {
    Generate(0, event.attempt_id, *generation);
  }
}

void DecodeProcess::HandleLease(const LeaseEvent& event) {
  if (const auto* committed = std::get_if<KvCommitted>(&event)) {
    KvCommitted heard = *committed;
    // Drawn by a kernel that has gone wrong.
    if (world_.Strikes(&NetworkFaults::compute_fail)) heard.first_token->token = kVocabulary;
    return HandleCore(heard);
  }
  std::visit([this](const auto& e) { HandleCore(decode::Event(e)); }, event);
}

void DecodeProcess::Generate(uint64_t call, uint64_t attempt_id, uint64_t generation) {
  opening_call_ = call;
  HandleCore(decode::StreamOpened{attempt_id, generation});
  opening_call_ = 0;
}

// As the shell has it from calls, slow readers and failpoints.
void DecodeProcess::Abort(uint64_t attempt_id) {
  absl::Status reason = absl::CancelledError("the router aborted it");
  if (world_.random().Chance(0.2)) reason = absl::OkStatus();
  if (world_.random().Chance(0.2)) reason = absl::ResourceExhaustedError("a slow reader");
  HandleCore(decode::AbortRequested{attempt_id, reason});
}

void DecodeProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  LinkBroken(call);
  for (const auto& [attempt, session] : sessions_) {
    if (session.reserve_call != call && session.stream_call != call) continue;
    HandleCore(decode::AbortRequested{attempt, absl::CancelledError("the call broke")});
    return;
  }
}

void DecodeProcess::Perform(const decode::ReplyReserve& action) {
  const auto session = sessions_.find(action.attempt_id);
  const uint64_t call = std::exchange(session->second.reserve_call, 0);
  if (!action.ticket.ok()) {
    sessions_.erase(session);
  } else if (world_.random().Chance(kStaleStream)) {
    OpenStaleStream(action.attempt_id, action.ticket->generation);
  }
  world_.AnswerOnCall<RouterProcess>(call, node_, "reserve reply",
                                     [call, action](RouterProcess& router) {
                                       router.ReserveReply(call, action.attempt_id, action.ticket);
                                     });
}

// A stream of the attempt's former life, or a second one: refused, and the request goes on.
void DecodeProcess::OpenStaleStream(uint64_t attempt_id, uint64_t generation) {
  const int64_t late_us = world_.random().Between(0, world_.random().Chance(0.5) ? 2000 : 500'000);
  world_.After(node_, late_us, "stale stream", [this, attempt_id, generation] {
    const auto session = sessions_.find(attempt_id);
    const bool second = session != sessions_.end() && session->second.stream_call != 0;
    Generate(0, attempt_id, second && world_.random().Chance(0.5) ? generation : generation - 1);
  });
}

void DecodeProcess::Perform(const decode::DeliverToken& action) {
  const uint64_t call = sessions_.at(action.attempt_id).stream_call;
  world_.AnswerOnCall<RouterProcess>(call, node_, "token", [call, action](RouterProcess& router) {
    router.Token(call, action.attempt_id, action.token);
  });
}

void DecodeProcess::Perform(const decode::RefuseStream& action) {
  world_.AnswerOnCall<RouterProcess>(opening_call_, node_, "stream refused",
                                     [call = opening_call_, action](RouterProcess& router) {
                                       router.StreamEnd(call, action.attempt_id, action.status);
                                     });
}

void DecodeProcess::Perform(const decode::Finish& action) {
  const auto session = sessions_.find(action.attempt_id);
  const uint64_t call = session->second.stream_call;
  sessions_.erase(session);
  const uint64_t attempt = action.attempt_id;
  if (action.outcome.ok()) {
    const FinishReason reason = *action.outcome;
    world_.AnswerOnCall<RouterProcess>(call, node_, "decode finish",
                                       [call, attempt, reason](RouterProcess& router) {
                                         router.DecodeFinished(call, attempt, reason);
                                       });
  }
  world_.AnswerOnCall<RouterProcess>(
      call, node_, "stream end",
      [call, attempt, status = action.outcome.status()](RouterProcess& router) {
        router.StreamEnd(call, attempt, status);
      });
}

// ---- The hand-off and steps, here and on the other ranks ----

void DecodeProcess::Perform(const decode::GrantKv& action) {
  if (action.rank > 0) return SendOrder(action.rank, OrderOf(action));
  kv_.Grant(action.grant);
}

void DecodeProcess::Perform(const decode::RevokeKv& action) {
  kv_.Revoke(action.slot, action.generation);
  for (int rank = 1; rank < topology_.decode_ranks; ++rank) SendOrder(rank, OrderOf(action));
}

void DecodeProcess::Perform(const decode::RunStep& step) {
  if (!world_.violation().empty()) return;  // The witness has complained of this one.
  for (int rank = 1; rank < topology_.decode_ranks; ++rank) SendOrder(rank, OrderOf(step));
  steps_.Run(step);
}

decode::StepFinished DecodeProcess::FinishStep(const DecodeSteps::Ended& ended) {
  decode::StepFinished done{ended.step, ended.status, {}};
  const double fails = world_.faults().compute_fail / 10;
  for (const DecodeSteps::Row& row : ended.rows) {
    const uint64_t attempt_id = row.fed.attempt_id;
    if (world_.random().Chance(fails)) {
      if (world_.random().Chance(0.3)) continue;  // No output at all.
      if (world_.random().Chance(0.5)) {
        done.outputs.push_back({attempt_id, absl::InternalError("a logit is not finite")});
      } else {
        const int32_t none = world_.random().Chance(0.5) ? -1 : kVocabulary;
        done.outputs.push_back({attempt_id, SampledToken{none, 0, {}}});
      }
      continue;
    }
    done.outputs.push_back(
        {attempt_id, DrawToken(row.out, row.sequence->inputs.prompt_id, row.fed.generated)});
  }
  if (!done.status.ok()) done.outputs.clear();
  return done;
}

absl::Status DecodeProcess::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(membership_->CheckInvariants());
  BATON_RETURN_IF_ERROR(core_.CheckInvariants());
  if (wiring_.has_value()) BATON_RETURN_IF_ERROR(wiring_->CheckInvariants());
  return kv_.leases().CheckInvariants();
}

bool DecodeProcess::AtRest(std::string& why_not) const {
  const LeaseTable& leases = kv_.leases();
  if (core_.AtRest() && leases.AtRest()) return true;
  const decode::DecodeLoad load = core_.load();
  why_not =
      absl::StrCat("waiting ", load.waiting, " reserved ", load.reserved, " running ", load.running,
                   " owned pages ", load.owned_pages, " quarantined ", load.quarantined_pages,
                   " grants ", leases.active_grants(), " draining ", leases.draining());
  return false;
}

}  // namespace baton::sim
