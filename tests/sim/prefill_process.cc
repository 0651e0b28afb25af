#include "tests/sim/prefill_process.h"

#include <algorithm>
#include <climits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

prefill::PlannerLimits PlannerLimitsOf(const Topology& topology) {
  prefill::PlannerLimits limits;
  limits.page_size = topology.page_size;
  limits.chunk_tokens = topology.chunk_tokens;
  limits.chunk_rule = topology.chunk_rule;
  limits.shares_plans = topology.shares_plans;
  limits.plan_window = topology.plan_window;
  limits.stage0_lead = std::max(limits.stage0_lead, topology.plans_in_flight);
  limits.max_open_requests = 6;
  limits.max_queued_requests = topology.max_queued;
  limits.max_context_tokens = topology.max_context_tokens;
  limits.plan_grace_us = topology.times.plan_grace_us;
  return limits;
}

prefill::StageOptions StageOptionsOf(const Topology& topology, int node) {
  prefill::StageOptions options;
  options.stage = topology.StageOf(node);
  options.stages = topology.stages;
  options.tensor_rank = topology.RankOf(node);
  options.kv_heads = topology.kv_heads;
  options.page_size = topology.page_size;
  options.activation_credits = topology.activation_credits;
  options.plans_in_flight = topology.plans_in_flight;
  return options;
}

prefill::KvOutboxOptions OutboxOptionsOf(const Topology& topology, int node) {
  const LayerRange layers = topology.StageLayers(topology.StageOf(node));
  prefill::KvOutboxOptions options;
  options.tensor_rank = topology.RankOf(node);
  options.kv_heads = topology.kv_heads;
  options.page_bytes = topology.RankLayout().BandBytes(layers);
  options.layers = layers;
  options.part_bytes = topology.PartBytes();
  options.merged_bytes = topology.MergedBytes(layers);
  options.window_bytes = topology.WindowBytes();
  options.window_messages = Topology::kWindowMessages;
  options.receipt_us = topology.times.receipt_us;
  options.receipt_asks = topology.times.receipt_asks;
  return options;
}

}  // namespace

links::ChainPlace PlaceOf(const Topology& topology, int node, const InstanceRef& self) {
  const int stage = topology.StageOf(node);
  return {absl::StrCat("chain-", topology.ChainOf(node)),
          stage,
          topology.stages,
          topology.layers,
          {self, topology.StageLayers(stage), topology.RankOf(node)}};
}

PrefillProcess::PrefillProcess(World& world, const Topology& topology, Oracle& oracle,
                               StageGroups& groups, int node, uint64_t incarnation)
    : world_(world),
      topology_(topology),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      chain_(topology.ChainOf(node)),
      member_(topology.MemberOf(node)),
      stage_index_(topology.StageOf(node)),
      rank_(topology.RankOf(node)),
      layers_(topology.StageLayers(stage_index_)),
      stage_(StageOptionsOf(topology, node)),
      outbox_(OutboxOptionsOf(topology, node)),
      neighbours_(stage_index_, rank_),
      groups_(groups),
      group_(world, topology, groups, node),
      oracle_(oracle),
      witness_(world, topology, self_.id, StageOptionsOf(topology, node),
               OutboxOptionsOf(topology, node)),
      memory_(topology.prefill_pages, layers_.size(), topology.page_size,
              BitsOf(topology.kv_heads, rank_)) {
  if (plans()) {
    planner_.emplace(PlannerLimitsOf(topology));
    planner_witness_.emplace(world, topology, oracle, self_.id, PlannerLimitsOf(topology));
    chunk_witness_.emplace(world, topology, self_.id);
    profile_.emplace(world, topology, node, self_.id);
    planner_account_.emplace(world, topology, self_.id, PlannerLimitsOf(topology));
  }
  MakeLinks();
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_),
      [this] {
        router::WorkerLoad load;
        if (plans()) {
          const prefill::PlannerLoad planner = planner_->load();
          load.running_requests = planner.open;
          load.queued_requests = planner.queued;
          load.queued_tokens = planner.queued_tokens;
          load.free_pages = planner.free_pages;
        }
        const bool draining = drain_ != nullptr && drain_->draining();
        const bool ready = (!plans() || wiring_->up()) && !draining;
        std::vector<uint64_t> linked;
        for (const InstanceRef& member : members_) {
          if (plans() && ready) linked.push_back(member.incarnation);
        }
        return WorkerMembership::Status{ready, load, draining, linked};
      },
      [this] { OnMembers(); });
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{[this](int64_t deadline_us) {
                           if (plans()) HandlePlanner(prefill::DrainBegan{deadline_us});
                         },
                         [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  HeartbeatDecodes();
  if (plans()) OnMembers();
}

// ---- Requests ----

void PrefillProcess::Start(uint64_t call, const SimStart& request) {
  Prompt& prompt = prompts_[request.attempt_id];
  prompt.prompt_id = request.prompt_id;
  prompt.tokens = request.prompt_tokens;
  prompt.start_call = call;
  prefill::StartRequested event;
  event.attempt_id = request.attempt_id;
  event.prompt_tokens = request.prompt_tokens;
  event.ticket = request.ticket;
  event.deadline_us = world_.now_us() + request.timeout_us;
  event.prompt_logprobs = request.prompt_logprobs;
  planner_witness_->Begin(request.prompt_id);
  LetIntrudersStart(event);
  const auto held = [this] { return planner_->load().queued + planner_->load().open; };
  const int before = held();
  HandlePlanner(event);
  if (held() == before + 1) {
    ExpectRefused(event, absl::StatusCode::kAlreadyExists, "in the prefill chain already");
  }
}

void PrefillProcess::Abort(uint64_t attempt_id) {
  HandlePlanner(prefill::AbortRequested{attempt_id, absl::CancelledError("the router aborted it")});
}

void PrefillProcess::HandlePlanner(const prefill::PlannerEvent& event) {
  if (!world_.violation().empty()) return;  // This event has already violated something.
  KeepForLater(event);
  planner_witness_->Before(event);
  chunk_witness_->Before(event);
  std::vector<prefill::PlannerAction> actions;
  planner_->Handle(event, world_.now_us(), actions);
  FreePages();
  planner_witness_->After(actions, *planner_);
  chunk_witness_->After(actions, *planner_);
  if (!world_.violation().empty()) return;
  planner_account_->Saw(event, actions, *planner_);
  if (!world_.violation().empty()) return;
  for (const auto& action : actions) Perform(action);
  planner_alarm_.SetOnBusyLoop(planner_->NextDeadlineUs());
}

void PrefillProcess::Perform(const prefill::PlannerAction& action) {
  TouchBy(world_, node_, action);
  if (const auto* issue = std::get_if<prefill::IssuePlan>(&action)) {
    Issue(issue->plan);
    return;
  }
  if (const auto* fail = std::get_if<prefill::FailChain>(&action)) {
    return wiring_->BreakAt(fail->stage, fail->rank, fail->status);
  }
  if (std::holds_alternative<prefill::ObservePlan>(action)) return;  // A metric.
  profile_->Keep(planner_->costs());
  auto finish = std::get<prefill::FinishRequest>(action);
  if (!finish.status.ok() && !LegOf(finish.status).has_value()) {
    finish.status = WithLeg(finish.status, "prefill", self_.id);  // As the shell does.
  }
  const uint64_t call = prompts_[finish.attempt_id].start_call;
  world_.AnswerOnCall<RouterProcess>(
      call, node_, "prefill end", [call, finish](RouterProcess& router) {
        router.PrefillEnd(call, finish.attempt_id, finish.status, finish.outcome.prompt_tokens);
      });
}

void PrefillProcess::Issue(const prefill::Plan& plan) {
  world_.Trace(node_, absl::StrCat("plan ", plan.number, ": ", plan.items.size(), " items, ",
                                   plan.TokenCount(), " tokens, ", plan.aborts.size(), " aborts"));
  std::vector<SimOpened> opened;
  for (const prefill::PlanOpen& open : plan.opens) {
    const Prompt& prompt = prompts_[open.attempt_id];
    opened.push_back({open.attempt_id, prompt.prompt_id, prompt.tokens});
  }
  for (const auto& [member, call] : wiring_->links()) {
    const bool embeds = member < topology_.ranks;
    const auto receive = [call = call, plan, told = embeds ? opened : std::vector<SimOpened>()](
                             PrefillProcess& peer) { peer.ReceivePlan(call, plan, told); };
    world_.SendOnCall<PrefillProcess>(call, node_, "plan", receive);
    if (!world_.Strikes(&NetworkFaults::plan_repeat)) continue;
    world_.SendOnCall<PrefillProcess>(call, node_, "plan again", receive);
  }
  if (!StrikeWithNonsense(plan)) HandleStage(prefill::PlanArrived{plan});
}

void PrefillProcess::ReceivePlan(uint64_t call, const prefill::Plan& plan,
                                 const std::vector<SimOpened>& opened) {
  for (const SimOpened& open : opened) {
    prompts_[open.attempt_id].prompt_id = open.prompt_id;
    prompts_[open.attempt_id].tokens = open.prompt_tokens;
  }
  link_->HearWork(call, plan.epoch, [this, plan] {
    if (!StrikeWithNonsense(plan)) HandleStage(prefill::PlanArrived{plan});
  });
}

// ---- The stage ----

void PrefillProcess::HandleStage(const prefill::StageEvent& event) {
  if (std::holds_alternative<prefill::EpochEnded>(event)) {
    Change([&](auto& actions) { outbox_.CancelAll(world_.now_us(), actions); });
    witness_.End();
  }
  KeepForLater(event);
  if (const auto* began = std::get_if<prefill::EpochBegan>(&event)) witness_.Begin(began->epoch);
  if (const auto* arrived = std::get_if<prefill::PlanArrived>(&event)) {
    witness_.Arrived(arrived->plan);
  }
  std::visit([this](const auto& e) { witness_.Hear(e); }, event);
  std::vector<prefill::StageAction> actions;
  stage_.Handle(event, world_.now_us(), actions);
  for (const auto& action : actions) {
    Witness(action);
    if (!world_.violation().empty()) return;
    Perform(action);
  }
}

void PrefillProcess::Witness(const prefill::StageAction& action) {
  std::visit(
      [this](const auto& act) {
        if constexpr (requires { witness_.See(act); }) witness_.See(act);
      },
      action);
}

void PrefillProcess::Perform(const prefill::StageAction& action) {
  std::visit(
      [this](const auto& act) {
        using T = std::decay_t<decltype(act)>;
        if constexpr (std::is_same_v<T, prefill::RunCompute>) {
          Submit(act);
        } else if constexpr (std::is_same_v<T, prefill::SendActivations>) {
          SendActivations(act);
        } else if constexpr (std::is_same_v<T, prefill::ReturnCredit>) {
          if (!membership_->Lives(neighbours_.previous()->endpoint)) {
            world_.After(node_, 1, "credit has no endpoint", [this, epoch = epoch_] {
              if (epoch == epoch_) FailEpoch(absl::UnavailableError("the endpoint is dead"));
            });
            return;
          }
          membership_->SendOver<PrefillProcess>(
              neighbours_.previous()->endpoint, 0, "credit", [] {},
              [act](PrefillProcess& peer, bool) { peer.ReceiveCredit(act.epoch, act.number); },
              [this, epoch = epoch_](const absl::Status& status) {
                // A lost credit would stall the chain.
                if (!status.ok() && epoch == epoch_) FailEpoch(status);
              });
        } else if constexpr (std::is_same_v<T, prefill::SendKv>) {
          ClearTail(act);
          Change([&](auto& actions) { outbox_.Add(act, world_.now_us(), actions); });
        } else if constexpr (std::is_same_v<T, prefill::SendCommit>) {
          prompts_[act.attempt_id].ticket = act.ticket;
          Change([&](auto& actions) { outbox_.Add(act, world_.now_us(), actions); });
        } else if constexpr (std::is_same_v<T, prefill::CancelKv>) {
          Change([&](auto& actions) { outbox_.Cancel(act.attempt_id, world_.now_us(), actions); });
        } else if constexpr (std::is_same_v<T, prefill::ReportPlanDone>) {
          Report(act.epoch, plans() ? "own plan done" : "plan done",
                 prefill::StagePlanDone{stage_index_, act.epoch, act.done, rank_.rank});
        } else if constexpr (std::is_same_v<T, prefill::ReportRequestClosed>) {
          outbox_.Forget(act.closed.attempt_id);
          if (const auto& ticket = prompts_[act.closed.attempt_id].ticket; ticket.has_value()) {
            CheckHandedOver(act.closed, *ticket);
          }
          Report(act.epoch, plans() ? "own request closed" : "request closed",
                 prefill::StageRequestClosed{stage_index_, act.epoch, act.closed, rank_.rank});
        } else {
          world_.Trace(node_, absl::StrCat("END EPOCH: ", act.status.message()));
          Change([&](auto& actions) { outbox_.CancelAll(world_.now_us(), actions); });
          witness_.End();
          if (absl::IsInternal(act.status)) {
            world_.Violate(absl::StrCat(self_.id, " ends its epoch: ", act.status.message()));
          }
          world_.After(node_, 1, "end epoch", [this, status = act.status, epoch = epoch_] {
            if (epoch == epoch_) FailEpoch(status);
          });
        }
      },
      action);
}

void PrefillProcess::Report(uint64_t epoch, const char* label,
                            const prefill::PlannerEvent& report) {
  if (!plans()) return link_->Report(epoch, label, report);
  world_.After(node_, 1, label, [this, report] { HandlePlanner(report); });
}

absl::Status PrefillProcess::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(membership_->CheckInvariants());
  if (planner_.has_value()) BATON_RETURN_IF_ERROR(planner_->CheckInvariants());
  if (wiring_.has_value()) BATON_RETURN_IF_ERROR(wiring_->CheckInvariants());
  BATON_RETURN_IF_ERROR(outbox_.CheckInvariants());
  return stage_.CheckInvariants();
}

bool PrefillProcess::AtRest(std::string& why_not) const {
  if (planner_.has_value() && !planner_->AtRest()) {
    const prefill::PlannerLoad load = planner_->load();
    why_not = absl::StrCat("planner: queued ", load.queued, " open ", load.open, " owned pages ",
                           load.owned_pages, " plans in flight ", load.plans_in_flight);
    return false;
  }
  why_not = "the stage holds a request, a plan or a send";
  return stage_.AtRest() && outbox_.AtRest();
}

}  // namespace baton::sim
