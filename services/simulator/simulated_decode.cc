#include "services/simulator/simulated_decode.h"

#include <utility>
#include <variant>

namespace baton::simulator {

SimulatedDecode::SimulatedDecode(const ClusterShape& shape, const InstanceRef& self,
                                 VirtualTime& time, Ways ways)
    : time_(time),
      ways_(std::move(ways)),
      core_(DecodeLimitsOf(shape, self)),
      steps_(shape.profile, {0, shape.profile.layers}),
      inbound_(shape.kv_gbps),
      alarm_(time, [this] { Handle(decode::Tick{}); }) {
  record_.page_count = shape.decode_pages;
}

void SimulatedDecode::Handle(const decode::Event& event) {
  std::vector<decode::Action> actions;
  core_.Handle(event, time_.now_us(), actions);
  Measure();
  std::vector<decode::DeliverToken> tokens;
  for (const decode::Action& action : actions) Perform(action, tokens);
  if (!tokens.empty()) ways_.tokens(tokens);
  alarm_.Set(core_.NextDeadlineUs());
}

void SimulatedDecode::Measure() {
  const decode::DecodeLoad load = core_.load();
  record_.waiting.Set(time_.now_us(), load.waiting);
  record_.running.Set(time_.now_us(), load.running);
  record_.pages.Set(time_.now_us(), load.owned_pages + load.quarantined_pages);
}

// A stream's tokens are delivered before its end, in order.
void SimulatedDecode::Perform(const decode::Action& action,
                              std::vector<decode::DeliverToken>& tokens) {
  if (const auto* token = std::get_if<decode::DeliverToken>(&action)) {
    tokens.push_back(*token);
  } else if (const auto* finish = std::get_if<decode::Finish>(&action)) {
    if (!tokens.empty()) ways_.tokens(std::exchange(tokens, {}));
    ways_.finished(*finish);
  } else if (const auto* step = std::get_if<decode::RunStep>(&action)) {
    Run(*step);
  } else if (const auto* reply = std::get_if<decode::ReplyReserve>(&action)) {
    ways_.replied(*reply);
  } else if (const auto* grant = std::get_if<decode::GrantKv>(&action)) {
    grants_[grant->grant.generation] = {grant->grant.slot, grant->grant.writers.size(), {}};
  } else if (const auto* revoke = std::get_if<decode::RevokeKv>(&action)) {
    grants_.erase(revoke->generation);
    time_.At(time_.now_us(),
             [this, drained = KvDrained{revoke->slot, revoke->generation}] { Handle(drained); });
  } else if (const auto* refused = std::get_if<decode::RefuseStream>(&action)) {
    ways_.refused(*refused);
  }
}

void SimulatedDecode::Commit(const Ticket& ticket, const std::optional<SampledToken>& first_token) {
  const auto found = grants_.find(ticket.generation);
  if (found == grants_.end()) return;  // The grant has been revoked.
  Grant& grant = found->second;
  if (first_token.has_value()) grant.first_token = *first_token;
  if (--grant.missing > 0) return;
  const KvCommitted committed{grant.slot, ticket.generation, grant.first_token, 0};
  grants_.erase(found);
  Handle(committed);
}

void SimulatedDecode::Run(const decode::RunStep& run) {
  TimedStep step;
  decode::StepFinished done;
  done.step = run.step;
  for (const decode::RunStep::Sequence& sequence : run.sequences) {
    step.Add(sequence.position, 1);
    done.outputs.push_back({sequence.attempt_id, SampledToken{1, 0, {}}});
  }
  const int64_t micros = steps_.NextMicros(step);
  ++record_.steps;
  record_.busy_us += micros;
  time_.At(time_.now_us() + micros, [this, done = std::move(done)] { Handle(done); });
}

}  // namespace baton::simulator
