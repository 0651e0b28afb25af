#include "services/simulator/simulated_chain.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/kv/head_routes.h"

namespace baton::simulator {
namespace {

constexpr uint64_t kEpoch = 1;

prefill::StageOptions StageOptionsOf(const ChainShape& chain, int stage) {
  prefill::PrefillOptions options = chain.options;
  options.pp_rank = stage;
  return prefill::StageOptionsOf(options, chain.limits.page_size);
}

prefill::ChainUp UpOf(const ChainShape& chain) {
  prefill::ChainUp up;
  up.epoch = kEpoch;
  up.stages = static_cast<int>(chain.stages.size());
  up.page_count = chain.page_count;
  for (const LayerRange& stage : chain.stages) up.stage_layers.push_back(stage.size());
  up.known_costs = chain.known_costs;
  up.followers = chain.followers;
  return up;
}

}  // namespace

SimulatedChain::Place::Place(const ClusterShape& shape, const ChainShape& chain, int stage)
    : layers(chain.stages[static_cast<size_t>(stage)]),
      core(StageOptionsOf(chain, stage)),
      steps(shape.profile, layers),
      activations(shape.activation_gbps),
      kv(shape.kv_gbps) {}

SimulatedChain::SimulatedChain(const ClusterShape& shape, const ChainShape& chain,
                               VirtualTime& time, Ways ways)
    : shape_(shape),
      time_(time),
      ways_(std::move(ways)),
      planner_(chain.limits),
      alarm_(time, [this] { Handle(prefill::Tick{}); }) {
  record_.page_count = chain.page_count;
  for (int stage = 0; stage < static_cast<int>(chain.stages.size()); ++stage) {
    places_.push_back(std::make_unique<Place>(shape, chain, stage));
    record_.stages.push_back({});
    record_.stages.back().layers = places_.back()->layers.size();
    HandleStage(stage, prefill::EpochBegan{kEpoch});
  }
  Handle(UpOf(chain));
}

// ---- The planner ----

void SimulatedChain::Handle(const prefill::PlannerEvent& event) {
  std::vector<prefill::PlannerAction> actions;
  planner_.Handle(event, time_.now_us(), actions);
  if (ways_.witness) ways_.witness(event, actions);
  std::vector<prefill::DeliverToken> tokens;
  for (const prefill::PlannerAction& action : actions) Perform(action, tokens);
  if (!tokens.empty()) ways_.tokens(tokens);
  Measure();
  alarm_.Set(planner_.NextDeadlineUs());
}

void SimulatedChain::Measure() {
  const prefill::PlannerLoad load = planner_.load();
  record_.queued.Set(time_.now_us(), load.queued);
  record_.open.Set(time_.now_us(), load.open - arriving_);
  record_.pages.Set(time_.now_us(), load.owned_pages);
  record_.retractions = static_cast<int64_t>(load.retractions_total);
}

// A stream's tokens are delivered before its end, in order.
void SimulatedChain::Perform(const prefill::PlannerAction& action,
                             std::vector<prefill::DeliverToken>& tokens) {
  if (const auto* issue = std::get_if<prefill::IssuePlan>(&action)) {
    for (int stage = 1; stage < stages(); ++stage) {
      Deliver(stage, prefill::PlanArrived{issue->plan});
    }
    HandleStage(0, prefill::PlanArrived{issue->plan});
  } else if (const auto* done = std::get_if<prefill::PromptDone>(&action)) {
    if (ways_.prompt_done) ways_.prompt_done(*done);
  } else if (const auto* token = std::get_if<prefill::DeliverToken>(&action)) {
    tokens.push_back(*token);
  } else if (const auto* finish = std::get_if<prefill::FinishRequest>(&action)) {
    if (!tokens.empty()) ways_.tokens(std::exchange(tokens, {}));
    ways_.finished(*finish);
  } else if (const auto* fail = std::get_if<prefill::FailChain>(&action)) {
    ways_.failed(fail->status);
  } else if (!std::holds_alternative<prefill::ObservePlan>(action)) {
    const auto* grant = std::get_if<prefill::GrantKv>(&action);
    if (grant != nullptr && grant->member == 0) ++arriving_;
    if (std::holds_alternative<prefill::RevokeKv>(action)) --arriving_;
    ways_.granting(action);
  }
}

// ---- Stages ----

void SimulatedChain::HandleStage(int stage, const prefill::StageEvent& event) {
  std::vector<prefill::StageAction> actions;
  places_[static_cast<size_t>(stage)]->core.Handle(event, time_.now_us(), actions);
  for (const prefill::StageAction& action : actions) {
    std::visit([&](const auto& act) { Perform(stage, act); }, action);
  }
}

void SimulatedChain::Deliver(int stage, prefill::StageEvent event) {
  time_.Deliver([this, stage, event = std::move(event)] { HandleStage(stage, event); });
}

// Stage 0 is the planner's own process.
void SimulatedChain::Tell(int stage, prefill::PlannerEvent event) {
  auto hear = [this, event = std::move(event)] { Handle(event); };
  if (stage == 0) {
    time_.At(time_.now_us(), std::move(hear));
  } else {
    time_.Deliver(std::move(hear));
  }
}

void SimulatedChain::Perform(int stage, const prefill::RunCompute& run) {
  Place& place = *places_[static_cast<size_t>(stage)];
  place.submitted.push_back(run);
  if (place.submitted.size() == 1) BeginCompute(stage);
}

void SimulatedChain::BeginCompute(int stage) {
  Place& place = *places_[static_cast<size_t>(stage)];
  const prefill::RunCompute& run = place.submitted.front();
  TimedStep step;
  prefill::ComputeFinished done;
  done.epoch = run.epoch;
  done.number = run.number;
  for (const prefill::RunCompute::Item& item : run.items) {
    step.Add(item.item.token_begin, item.item.token_count);
    const bool draws = (item.item.final || item.item.draws) && stage + 1 == stages();
    if (draws) done.drawn.emplace_back(SampledToken{1, 0, {}});
  }
  done.compute_us = place.steps.NextMicros(step);
  Keep(stage, run, done.compute_us);
  const int64_t end_us = time_.now_us() + done.compute_us;
  time_.At(end_us, [this, stage, done = std::move(done)] {
    std::deque<prefill::RunCompute>& submitted = places_[static_cast<size_t>(stage)]->submitted;
    submitted.pop_front();
    if (!submitted.empty()) BeginCompute(stage);  // It does not wait until this end is reported.
    HandleStage(stage, done);
  });
}

void SimulatedChain::Keep(int stage, const prefill::RunCompute& run, int64_t micros) {
  StageRecord& record = record_.stages[static_cast<size_t>(stage)];
  ++record.plans;
  for (const auto& item : run.items) record.tokens += item.item.token_count;
  if (!ways_.keeps || !ways_.keeps(time_.now_us(), static_cast<int>(run.items.size()))) return;
  ComputeRecord compute{time_.now_us(), time_.now_us() + micros, {}};
  for (const auto& item : run.items) {
    compute.items.push_back(
        {ways_.request_of(item.item.attempt_id), item.item.token_begin, item.item.token_count});
  }
  record.computes.push_back(std::move(compute));
}

void SimulatedChain::Perform(int stage, const prefill::SendActivations& send) {
  Pipe& pipe = places_[static_cast<size_t>(stage)]->activations;
  const Pipe::Passage passage = pipe.Send(time_.now_us(), send.token_count * shape_.row_bytes);
  time_.At(passage.end_us, [this, stage, send] {
    HandleStage(stage, prefill::ActivationsSent{send.epoch, send.number, absl::OkStatus()});
  });
  const int64_t since_us = passage.begin_us + time_.latency_us;
  time_.At(passage.end_us + time_.latency_us, [this, stage, send, since_us] {
    HandleStage(stage + 1, prefill::ActivationsArrived{send.epoch, send.number, since_us});
  });
}

void SimulatedChain::Perform(int stage, const prefill::ReturnCredit& credit) {
  Deliver(stage - 1, prefill::CreditReturned{credit.epoch, credit.number});
}

// By stage of the decode service that has some of this one's layers: which.
std::vector<std::pair<int, LayerRange>> SimulatedChain::ReceiversOf(int stage,
                                                                    const Ticket& ticket) const {
  std::vector<std::pair<int, LayerRange>> receivers;
  const KvPlace source{places_[static_cast<size_t>(stage)]->layers, {}};
  const std::vector<KvPlace> places = PlacesOf(ticket, shape_.layout.layers);
  for (size_t place = 0; place < places.size(); ++place) {
    const std::optional<KvBox> box = BoxBetween(shape_.layout.kv_heads, source, places[place]);
    if (box.has_value()) receivers.emplace_back(static_cast<int>(place), box->layers);
  }
  return receivers;
}

// The KV passes the stage's connection and the receiver's; the slower one counts.
void SimulatedChain::Perform(int stage, const prefill::SendKv& send) {
  Place& place = *places_[static_cast<size_t>(stage)];
  const int64_t now_us = time_.now_us();
  int64_t& end_us = place.kv_ends_us[send.attempt_id];
  int64_t bytes = 0;
  for (const auto& [receiver, layers] : ReceiversOf(stage, send.ticket)) {
    const int64_t part = static_cast<int64_t>(send.pages.size()) *
                         static_cast<int64_t>(shape_.layout.BandBytes(layers));
    const int64_t out_us = place.kv.Send(now_us, part).end_us;
    const int64_t in_us = ways_.inbound(send.ticket.decode, receiver).Send(now_us, part).end_us;
    end_us = std::max({end_us, out_us, in_us});
    bytes += part;
  }
  const int64_t sent_us = end_us + 2 * time_.latency_us;  // When the sender knows of its end.
  time_.At(sent_us, [this, stage, send, bytes, micros = sent_us - now_us] {
    HandleStage(stage, prefill::KvSent{send.epoch, send.send_id, absl::OkStatus(), micros, bytes});
  });
}

void SimulatedChain::Perform(int stage, const prefill::SendCommit& commit) {
  Place& place = *places_[static_cast<size_t>(stage)];
  const int64_t left_us = std::max(time_.now_us(), place.kv_ends_us[commit.attempt_id]);
  for (const auto& [receiver, layers] : ReceiversOf(stage, commit.ticket)) {
    time_.At(left_us + time_.latency_us, [this, commit, receiver = receiver] {
      ways_.committed(commit.ticket, receiver, commit.first_token);
    });
  }
  const int64_t receipt_us = left_us + 2 * time_.latency_us;
  time_.At(receipt_us, [this, stage, commit, micros = receipt_us - time_.now_us()] {
    HandleStage(stage, prefill::KvSent{commit.epoch, commit.send_id, absl::OkStatus(), micros, 0});
  });
}

// KV under way still arrives, but decode no longer waits for it.
void SimulatedChain::Perform(int /*stage*/, const prefill::CancelKv& /*cancel*/) {}

void SimulatedChain::Perform(int stage, const prefill::ReportPlanDone& report) {
  Tell(stage, prefill::StagePlanDone{stage, report.epoch, report.done});
}

void SimulatedChain::Perform(int stage, const prefill::ReportRequestClosed& report) {
  places_[static_cast<size_t>(stage)]->kv_ends_us.erase(report.closed.attempt_id);
  Tell(stage, prefill::StageRequestClosed{stage, report.epoch, report.closed});
}

void SimulatedChain::Perform(int /*stage*/, const prefill::EndEpoch& end) {
  ways_.failed(end.status);
}

// ---- The end ----

ChainRecord SimulatedChain::TakeRecord() {
  for (size_t stage = 0; stage < places_.size(); ++stage) {
    places_[stage]->core.AccountTime(time_.now_us());
    record_.stages[stage].times = places_[stage]->core.times();
  }
  return record_;
}

}  // namespace baton::simulator
