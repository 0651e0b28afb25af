#include "services/prefill/chain/chain_shell.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/prefill/chain/stage_link.h"
namespace baton::prefill {

ChainShell::ChainShell(Options options)
    : options_(std::move(options)),
      planner_(options_.limits),
      wiring_(links::WiringOptions{options_.place, options_.page_count, planner_.max_plan_tokens(),
                                   options_.activation_credits}) {
  if (!options_.profile.path.empty()) {
    profile_ = std::make_unique<ProfileKeeper>(options_.profile);
  }
  StageShell::Reports reports;
  reports.plan_done = [this](uint64_t epoch, const PlanDone& done) {
    Handle(StagePlanDone{0, epoch, done});
  };
  reports.request_closed = [this](uint64_t epoch, const RequestClosed& closed) {
    Handle(StageRequestClosed{0, epoch, closed});
  };
  reports.end_epoch = [this](const absl::Status& status) { Break(status); };
  options_.stage->SetReports(std::move(reports));
}

absl::Status ChainShell::BeginOwn(const links::Hello& hello) {
  followers_.clear();
  linked_.clear();
  for (const KvWriter& member : hello.members) {
    if (hello.members.size() > 1) linked_.push_back(member.instance.incarnation);
    if (member.instance == options_.place.self.instance) continue;
    followers_.push_back(member.instance);
  }
  stage_layers_.clear();
  for (const KvWriter& member : hello.members) {
    if (member.tensor_rank.rank == 0) stage_layers_.push_back(member.layers.size());
  }
  measured_.assign(stage_layers_.size(), std::nullopt);
  return BeginEpoch(hello, options_.grants, *options_.peers, *options_.stage);
}

ChainUp ChainShell::UpOf(uint64_t epoch, int page_count) const {
  ChainUp up{epoch,         options_.place.stages, page_count,
             stage_layers_, KnownCosts(),          options_.place.ranks()};
  if (options_.grants == nullptr) return up;
  up.followers = followers_;
  up.newest_generation = newest_generation_;
  return up;
}

absl::Status ChainShell::OnReport(const links::PassReport& of, const v1::LinkResponse& response) {
  if (response.has_plan_done()) {
    BATON_ASSIGN_OR_RETURN(const PlanDone done, FromProto(response.plan_done()));
    Handle(StagePlanDone{of.stage, of.epoch, done, of.rank});
    return absl::OkStatus();
  }
  if (response.has_request_closed()) {
    BATON_ASSIGN_OR_RETURN(const RequestClosed closed, FromProto(response.request_closed()));
    Handle(StageRequestClosed{of.stage, of.epoch, closed, of.rank});
    return absl::OkStatus();
  }
  if (response.has_compiled()) {
    BATON_ASSIGN_OR_RETURN(const absl::Status status, FromProto(response.compiled()));
    OnCompiled(response.compiled().attempt_id(), status);
    return absl::OkStatus();
  }
  if (response.has_report() && options_.grants != nullptr) {
    return OnGrantReport(of, response.report());
  }
  return absl::InvalidArgumentError("a report that is none of a prefill stage");
}

// A file of other plans' times says more than the few chunks that stages have measured.
std::vector<KnownCost> ChainShell::KnownCosts() const {
  std::vector<KnownCost> known;
  if (profile_ != nullptr) known = profile_->KnownOf(stage_layers_);
  if (!known.empty()) return known;
  for (const std::optional<KnownCost>& stage : measured_) {
    if (!stage) return {};
    known.push_back(*stage);
  }
  return known;
}

int ChainShell::FlushCache() {
  const int before = planner_.load().cached_pages;
  Handle(prefill::FlushCache{});
  return before - planner_.load().cached_pages;
}

void ChainShell::OnMembers(const std::vector<worker::PeerWorker>& members) {
  wiring_events_.Raise(links::MembersSeen{members});
}

int64_t ChainShell::Wake(int64_t now_us) {
  BeginCompiled(now_us);
  if (planner_.NextDeadlineUs() <= now_us) Handle(Tick{});
  const int64_t wiring_us = WakeWiring(now_us);
  return std::min({wiring_us, planner_.NextDeadlineUs(), compiling_.NextUs(now_us)});
}

void ChainShell::Stop() {
  wiring_events_.Raise(links::WiringStopped{});
  BeginCompiled(kNeverUs);  // They are refused, for the chain is down.
  if (profile_ != nullptr) profile_->KeepLast(planner_.costs());
}

void ChainShell::HandleOne(const PlannerEvent& event) {
  std::vector<PlannerAction> actions;
  planner_.Handle(event, NowUs(), actions);
  // Not before: what the planner decided until now counts on them.
  const bool down = std::holds_alternative<ChainDown>(event);
  if (down && options_.grants != nullptr) options_.grants->EndEpoch();
  // Plans first: they are computed while the last one's tokens are written out.
  const auto is_plan = [](const PlannerAction& action) {
    return std::holds_alternative<IssuePlan>(action);
  };
  std::stable_partition(actions.begin(), actions.end(), is_plan);
  for (const PlannerAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

void ChainShell::Perform(const IssuePlan& action) {
  if (absl::Status status = Failpoint("prefill.plan"); !status.ok()) {
    Break(status);
    return;
  }
  PlanWithContexts plan{action.plan, {}};
  for (const PlanOpen& open : action.plan.opens) {
    const auto call = calls_.find(open.attempt_id);
    BATON_CHECK(call != calls_.end()) << "attempt " << open.attempt_id << " is opened unasked";
    plan.opens[open.attempt_id] = call->second.prompt;
    if (!open.drawn.empty()) {  // It was retracted, and its first wait is told.
      plan.opens[open.attempt_id] = Resumed(*call->second.prompt, open.drawn);
      continue;
    }
    if (call->second.reservation != nullptr) continue;  // With the ticket.
    const int64_t now_us = NowUs();
    options_.metrics->Observe(Metric::kQueueSeconds,
                              static_cast<double>(now_us - call->second.begun_us) * 1e-6);
    tracing::RecordSpan(options_.tracer, "prefill queue", call->second.prompt->trace,
                        call->second.begun_us, now_us);
  }
  CountPlan(action);
  SendToMembers(plan);
  options_.stage->OnPlan(std::move(plan));
}

void ChainShell::CountPlan(const IssuePlan& action) {
  const size_t items = action.plan.items.size();
  const size_t steps = action.decode_waits_us.size();
  if (items == 0) return;
  Metrics& metrics = *options_.metrics;
  metrics.Increment(Metric::kPlansIssuedTotal, 1,
                    {steps == 0 ? "prefill" : (steps == items ? "decode" : "mixed")});
  if (steps > 0) {
    const PlannerLimits& limits = options_.limits;
    const int most = limits.RowsOfSlot(limits.max_open_requests, options_.place.stages);
    metrics.Observe(Metric::kPlanSlotOccupancyRatio, static_cast<double>(steps) / most);
  }
  for (const int64_t wait_us : action.decode_waits_us) {
    metrics.Observe(Metric::kDecodeWaitSeconds, static_cast<double>(wait_us) * 1e-6);
  }
}

void ChainShell::SendToMembers(const PlanWithContexts& plan) {
  const links::ChainPlace& place = options_.place;
  if (place.members() == 1) return;
  v1::LinkRequest request;
  *request.mutable_plan() = ToProto(plan, /*embeds=*/false);
  v1::LinkRequest embedding;  // To the other ranks of stage 0.
  if (place.ranks() > 1) *embedding.mutable_plan() = ToProto(plan, /*embeds=*/true);
  for (int member = 1; member < place.members(); ++member) {
    Send(member, place.StageOf(member) == 0 ? embedding : request);
  }
}

void ChainShell::Perform(const FailChain& action) {
  if (action.stage == 0 && action.rank == 0) return Break(action.status);
  BreakAt(action.stage, action.rank, action.status);
}

void ChainShell::Perform(const ObservePlan& action) {
  if (decode()) return;  // Nothing of its plans is predicted that anybody would look at.
  const double ratio = static_cast<double>(action.compute_us) / action.predicted_us;
  options_.metrics->Observe(Metric::kPlanPredictionRatio, ratio);
}

void ChainShell::TellCosts(int64_t now_us) {
  const std::vector<LearnedCost> costs = planner_.costs();
  if (costs.empty()) {  // The chain was never up.
    options_.metrics->Set(Metric::kPlanCostsKnown, 0);
    return;
  }
  if (profile_ != nullptr) profile_->Keep(costs, now_us);
  double error = 0;
  std::string missing;
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    error = std::max(error, costs[stage].error);
    if (costs[stage].missing == nullptr || !missing.empty()) continue;
    missing = absl::StrCat(costs[stage].missing, " of stage ", stage);
  }
  options_.metrics->Set(Metric::kPlanCostErrorRatio, error);
  options_.metrics->Set(Metric::kPlanCostsKnown, missing.empty() ? 1 : 0);
  if (options_.limits.chunk_rule == ChunkRule::kFixed || missing == missing_costs_) return;
  missing_costs_ = std::move(missing);
  if (missing_costs_.empty()) {
    LOG(kInfo) << "what chunks cost is known on every stage; their size follows it";
  } else {
    LOG(kInfo) << "chunks are cut without knowing what they cost: " << missing_costs_;
  }
}

void ChainShell::ObservePrompt(const Call& call, const PrefillOutcome& outcome) {
  options_.metrics->Observe(Metric::kPrefillSeconds,
                            static_cast<double>(NowUs() - call.begun_us) * 1e-6);
  options_.metrics->Observe(Metric::kRequestChunks, static_cast<double>(outcome.chunks.size()));
  options_.metrics->Increment(Metric::kCachedPromptTokensTotal, outcome.cached_tokens);
}

void ChainShell::Perform(const PromptDone& action) {
  const Call& call = calls_.at(action.attempt_id);
  if (call.reservation != nullptr) return;
  ObservePrompt(call, action.outcome);
  v1::DecodeGenerateResponse response;
  *response.mutable_prompt() = ToProto(action.outcome);
  if (!call.stream->Push(std::move(response))) EndSlow(action.attempt_id, call);
}

void ChainShell::Perform(const DeliverToken& action) {
  options_.metrics->Increment(Metric::kGenerationTokensTotal);
  const Call& call = calls_.at(action.attempt_id);
  const bool logprobs = call.prompt->sampler.params().logprobs;
  if (call.reservation != nullptr) {
    const absl::Status status = call.reservation->OnToken(action.token, logprobs);
    if (!status.ok()) Handle(AbortRequested{action.attempt_id, status});
  } else if (!call.stream->PushToken(action.token, logprobs)) {
    EndSlow(action.attempt_id, call);
  }
}

void ChainShell::EndSlow(uint64_t attempt_id, const Call& call) {
  call.stream->Break();
  Handle(AbortRequested{attempt_id,
                        absl::ResourceExhaustedError("the reader of the stream is too slow")});
}

void ChainShell::Perform(const FinishRequest& action) {
  const auto found = calls_.find(action.attempt_id);
  BATON_CHECK(found != calls_.end()) << "attempt " << action.attempt_id << " ends twice";
  const Call call = std::move(found->second);
  calls_.erase(found);
  const absl::Status status = Named(action.status);
  if (call.start == nullptr) {
    absl::StatusOr<FinishReason> outcome = action.reason;
    if (!status.ok()) outcome = status;
    return call.stream != nullptr ? call.stream->Conclude(outcome)
                                  : call.reservation->OnEnd(outcome);
  }
  if (status.ok()) ObservePrompt(call, action.outcome);
  call.start->Reply(status, ToProto(action.outcome));
}

}  // namespace baton::prefill
