#include "tests/sim/router_process.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "services/router/core/prefix_keys.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

router::RouterLimits Limits(const Topology& topology, uint64_t incarnation) {
  Random random(incarnation);
  router::RouterLimits limits;
  const Timings& times = topology.times;
  limits.seed = random.Next();
  limits.membership.lease_us = times.lease_us;
  limits.membership.settle_us = times.settle_us;
  limits.membership.first_probation_us = times.first_probation_us;
  limits.membership.longest_probation_us = times.longest_probation_us;
  // As many as there are: who comes under a new name waits until the old one's lease is over.
  if (random.Chance(0.3)) limits.membership.max_workers = topology.NodeCount() - topology.routers;
  limits.membership.told_of_all = topology.told_of_all;
  limits.settle_us = times.report_us;
  limits.overload_backoff = times.overload_backoff;
  limits.beat_us = limits.membership.lease_us / 4;
  limits.retry_budget.percent = random.Chance(0.5) ? 20 : 0;
  limits.retry_budget.per_second = random.Chance(0.5) ? 3 : 1;
  limits.incarnation = incarnation;
  limits.max_requests = topology.max_requests;
  limits.max_waiting = 16;
  limits.pairing_timeout_us = times.pairing_timeout_us;
  limits.membership.pair_grace_us = times.pairing_timeout_us;
  limits.max_attempts = topology.max_attempts;
  limits.max_resumes = static_cast<int>(random.Below(3));
  limits.policy = topology.policy;
  return limits;
}

// Prompts of some families begin alike.
std::vector<uint64_t> PrefixOf(uint64_t call_id, int prompt_tokens) {
  constexpr uint64_t kFamilies = 5;
  std::vector<uint64_t> keys;
  while (router::PrefixTokens(keys.size() + 1) <= prompt_tokens) {
    keys.push_back(Mix64(call_id % kFamilies ^ Mix64(keys.size())));
  }
  return keys;
}

// Covers what a process holds: its layers, and the model's ends if they are among them.
ModelFingerprint FingerprintOf(const Topology& topology, int node, const LayerRange& layers) {
  ModelFingerprint held;
  held.config_hash = 1;
  held.dtype = "float32";
  held.kv_layout = topology.Layout();
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    held.layer_hashes[layer] = 100 + static_cast<uint64_t>(layer);
  }
  if (layers.begin == 0) held.embedding_hash = 11;
  if (layers.end == topology.layers) held.head_hash = 13;
  if (topology.IsStranger(node)) {  // It does not fit those that hold the same.
    const int differs = topology.layers % 3;
    if (differs == 0) ++held.embedding_hash;
    if (differs == 1) ++held.head_hash;
    if (differs == 2) ++held.layer_hashes[topology.layers / 2];
  }
  // Some are upgraded, and speak a version that no other process does yet.
  held.protocol_version = kProtocolVersion + (node % 3 == 0 ? 1 : 0);
  held.oldest_protocol_version = kOldestProtocolVersion;
  return held;
}

}  // namespace

RouterProcess::RouterProcess(World& world, const Topology& topology, Clients& clients, int node,
                             uint64_t incarnation)
    : world_(world),
      topology_(topology),
      clients_(clients),
      node_(node),
      incarnation_(incarnation),
      limits_(Limits(topology, incarnation)),
      core_(limits_),
      witness_(world, topology, limits_, absl::StrCat("router-", node)),
      legs_(kVocabulary) {}

router::WorkerInfo RouterProcess::Describe(const Topology& topology, const InstanceRef& self) {
  const int node = NodeOf(self.id);
  router::WorkerInfo info;
  info.instance = self;
  info.role = topology.RoleOf(node);
  info.grpc_address = absl::StrCat("127.0.0.1:", 20000 + node);
  info.data_address = self.id;
  if (topology.IsDecode(node)) {
    info.pp_rank = topology.DecodeStageOf(node);
    info.pp_size = topology.decode_stages;
    info.layers = topology.DecodeLayersOf(node);
    info.tensor_rank = topology.DecodeRankOf(node);
    info.page_count = topology.PagesOf(node);
    info.decodes = topology.IsColocated(node);
    if (info.decodes) {
      info.chain_id = topology.DecodeId(node);
    } else {
      if (info.places() > 1) info.decode_id = topology.DecodeId(node);
      info.reserved_decode_tokens = topology.reserved_tokens;
    }
  } else {
    info.chain_id = absl::StrCat("chain-", topology.ChainOf(node));
    info.pp_rank = topology.StageOf(node);
    info.pp_size = topology.stages;
    info.layers = topology.StageLayers(info.pp_rank);
    info.tensor_rank = topology.RankOf(node);
    info.agreed.sends_slices = topology.slices && !info.tensor_rank.alone();
    info.page_count = topology.prefill_pages;
  }
  info.max_running_requests = topology.max_running;
  info.max_context_tokens = topology.max_context_tokens;
  info.fingerprint = FingerprintOf(topology, node, info.layers);
  return info;
}

void RouterProcess::Handle(const router::Event& event) {
  std::vector<router::Action> actions;
  core_.Handle(event, world_.now_us(), actions);
  const auto begin = [this](const auto& attempt) {
    CheckDecodeLegEnded(attempt.call_id);
    if (!attempts_.contains(attempt.call_id)) begun_us_.push_back(world_.now_us());
    attempts_[attempt.call_id] = attempt.attempt_id;
  };
  for (const router::Action& action : actions) {
    if (const auto* reserve = std::get_if<router::Reserve>(&action)) begin(*reserve);
    if (const auto* start = std::get_if<router::StartGeneration>(&action)) begin(*start);
    Perform(action);
  }
  for (const router::Action& action : actions) {
    if (const auto* finish = std::get_if<router::FinishCall>(&action)) {
      CheckDecodeLegEnded(finish->call_id);
      CheckAnswerStands(*finish);
    }
  }
  witness_.Saw(event, actions, core_);
  alarm_.Set(core_.NextDeadlineUs());
  CheckMembersArrive();
  if (topology_.only_routers_pause && core_.load().leases_expired_total > 0) {
    world_.Violate("a router that stood still has lost a worker that did not");
  }
  if (core_.drain(world_.now_us()) == router::RouterDrain::kDrained) world_.Exit(node_);
}

void RouterProcess::DrainWorker(const std::string& instance_id) {
  Handle(router::DrainRequested{0, instance_id});
}

void RouterProcess::Drain(int64_t settle_us, int64_t timeout_us) {
  world_.Trace(node_, absl::StrCat("DRAIN within ", timeout_us / 1000, " ms"));
  Handle(router::RouterDrainBegan{settle_us, timeout_us});
}

void RouterProcess::CheckDecodeLegEnded(uint64_t call_id) {
  const auto attempt = attempts_.find(call_id);
  if (attempt == attempts_.end()) return;
  for (const auto& [call, open] : calls_) {
    if (open.attempt_id != attempt->second || open.call == router::LegCall::kStart) continue;
    if (open.answered) continue;  // It has said its last word.
    world_.Violate(absl::StrCat("rule 5: the decode leg of call ", call_id,
                                " goes on after the attempt's end"));
    return;
  }
}

void RouterProcess::CheckAnswerStands(const router::FinishCall& finish) {
  const Client& client = clients_.Get(finish.call_id);
  const bool whole = !client.prompt_logprobs || client.prompt_told;
  if (finish.outcome.ok() || !whole || client.left || client.aborted) return;
  const auto attempt = attempts_.find(finish.call_id);
  if (attempt == attempts_.end() || !answered_.contains(attempt->second)) return;
  world_.Violate(absl::StrCat("call ", finish.call_id, " has its whole answer and fails: ",
                              finish.outcome.status().ToString()));
}

std::optional<uint64_t> RouterProcess::CallOf(uint64_t attempt_id) const {
  const auto current =
      std::find_if(attempts_.begin(), attempts_.end(),
                   [attempt_id](const auto& entry) { return entry.second == attempt_id; });
  return current == attempts_.end() ? std::nullopt : std::optional(current->first);
}

// ---- Clients ----

void RouterProcess::Submit(uint64_t id) {
  Client& client = clients_.Get(id);
  clients_.Submitted(id, !core_.membership().ReadyPairs().empty());
  router::CallSubmitted event;
  event.call_id = id;
  event.request_id = client.request_id;
  event.prompt_tokens = client.prompt_tokens;
  event.max_tokens = client.max_tokens;
  event.deadline_us = client.deadline_us;
  event.prompt_logprobs = client.prompt_logprobs;
  event.prefix = PrefixOf(id, client.prompt_tokens);
  event.tenant = absl::StrCat("tenant-", Mix64(id) % static_cast<uint64_t>(topology_.tenants));
  event.routing_key = id % 3 == 0 ? 0 : 1 + Mix64(id % 7);
  Handle(event);
}

void RouterProcess::Cancel(uint64_t call_id) {
  Handle(router::ClientGone{call_id});
  legs_.Forget(call_id);
  if (!clients_.Get(call_id).finished) {  // The client has left: it gets no answer.
    clients_.Get(call_id).finished = true;
  }
}

void RouterProcess::AbortRequest(const std::string& request_id) {
  Handle(router::AbortCalled{0, request_id});
}

// ---- Workers ----

void RouterProcess::AskLease(const router::LeaseAsked& asked) {
  LetIntrudersAsk(asked.worker);
  leases_[asked.rpc_id] = NodeOf(asked.worker.instance.id);
  Handle(asked);
}

void RouterProcess::Find(uint64_t call, int node, const InstanceRef& peer) {
  absl::StatusOr<router::WorkerInfo> found = absl::NotFoundError("it holds no lease here");
  if (const router::Worker* worker = core_.membership().Find(peer)) found = worker->info;
  Tell(call, node, "found", [call, found](WorkerMembership& m) { m.Found(call, found); });
}

void RouterProcess::Tell(uint64_t call, int node, const char* label,
                         const std::function<void(WorkerMembership&)>& tell) {
  world_.SendOnCall<Process>(call, node_, label, [tell](Process& p) { tell(*p.worker()); });
}

void RouterProcess::TellLease(uint64_t call, const char* label,
                              const std::function<void(WorkerMembership&)>& tell) {
  if (const auto lease = leases_.find(call); lease != leases_.end()) {
    Tell(call, lease->second, label, tell);
  }
}

void RouterProcess::EndLease(uint64_t call, const absl::Status& status) {
  TellLease(call, "lease ended",
            [call, status](WorkerMembership& m) { m.LeaseEnded(call, status); });
  leases_.erase(call);
}

void RouterProcess::Perform(const router::Action& action) {
  TouchBy(world_, node_, action);
  std::visit(
      [this](const auto& act) {
        using T = std::decay_t<decltype(act)>;
        if constexpr (std::is_same_v<T, router::AnswerLease>) {
          if (act.rpc_id == kOfIntruder) {
            intruder_told_ = act.status;
            return;
          }
          TellsJoined(act);
          if (!act.status.ok()) return EndLease(act.rpc_id, act.status);
          TellLease(act.rpc_id, "registered",
                    [call = act.rpc_id, life = incarnation_](WorkerMembership& m) {
                      m.Registered(call, life);
                    });
        } else if constexpr (std::is_same_v<T, router::AnswerHeartbeat>) {
          TellLease(act.rpc_id, "heartbeat answer",
                    [act](WorkerMembership& m) { m.HeartbeatAnswered(act.rpc_id, act); });
        } else if constexpr (std::is_same_v<T, router::AskHeartbeat>) {
          TellLease(act.rpc_id, "heartbeat wanted",
                    [call = act.rpc_id](WorkerMembership& m) { m.HeartbeatWanted(call); });
        } else if constexpr (std::is_same_v<T, router::EndLease>) {
          EndLease(act.rpc_id, act.status);
        } else if constexpr (std::is_same_v<T, router::ReplyDrain> ||
                             std::is_same_v<T, router::ReplyAbort>) {
          // No process waits for them.
        } else if constexpr (std::is_same_v<T, router::AbortPrefill> ||
                             std::is_same_v<T, router::AbortDecode>) {
          ChangeLegs([&](auto& actions) { legs_.Abort(act, actions); });
        } else if constexpr (std::is_same_v<T, router::DeliverPrompt>) {
          clients_.OnPrompt(act.call_id, act.tokens);
        } else if constexpr (std::is_same_v<T, router::DeliverToken>) {
          if (clients_.OnToken(act.call_id, act.token.token)) {
            world_.After(node_, 0, "stop matched",
                         [this, id = act.call_id] { Handle(router::StopMatched{id}); });
          }
        } else if constexpr (std::is_same_v<T, router::FinishCall>) {
          legs_.Forget(act.call_id);
          clients_.OnFinished(act.call_id, act.outcome);
          if (act.outcome.ok()) ServedBy(act);
        } else {
          PerformLeg(act);
        }
      },
      action);
}

void RouterProcess::ServedBy(const router::FinishCall& finish) {
  clients_.ServedBy(finish.call_id, {finish.chain_id, finish.decode_instance});
  if (!topology_.IsColocated(NodeOf(finish.decode_instance))) return;
  Covered<"client: a colocated chain answers">();
  if (finish.resumes > 0) Covered<"client: a colocated chain goes on with another's text">();
}

bool RouterProcess::AtRest(std::string& why_not) const {
  if (core_.AtRest() && legs_.AtRest()) return true;
  why_not = absl::StrCat(core_.load().in_flight, " transactions in flight");
  return false;
}

}  // namespace baton::sim
