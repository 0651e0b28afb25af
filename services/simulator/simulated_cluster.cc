#include "services/simulator/simulated_cluster.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "services/router/core/prefix_keys.h"

namespace baton::simulator {

SimulatedCluster::SimulatedCluster(const ClusterShape& shape, const Workload& workload,
                                   const TimelineWindow& timeline, Witness witness)
    : shape_(shape),
      workload_(workload),
      timeline_(timeline),
      witness_(std::move(witness)),
      time_(shape.latency_us) {
  for (int chain = 0; chain < shape.chains; ++chain) AddChain(chain);
  for (int decode = 0; decode < shape.decodes; ++decode) AddDecode(decode);
  for (int i = 0; i < shape.routers; ++i) {
    routers_.push_back(std::make_unique<Router>(RouterLimitsOf(shape, i), time_, [this, i] {
      Handle(*routers_[static_cast<size_t>(i)], router::Tick{});
    }));
    Join(*routers_.back());
  }
  for (const WorkloadRequest& request : workload.requests) {
    RequestRecord record;
    record.prompt_tokens = request.prompt_tokens;
    record.output_tokens = request.output_tokens;
    record_.requests.push_back(record);
  }
}

void SimulatedCluster::AddChain(int chain) {
  SimulatedChain::Ways ways;
  ways.finished = [this](const prefill::FinishRequest& finish) {
    if (!shape_.prefill.planner.decodes) {
      return Hear(
          finish.attempt_id,
          router::PrefillEnded{finish.attempt_id, finish.status, {}, finish.outcome.cached_tokens});
    }
    absl::StatusOr<FinishReason> outcome = finish.reason;
    if (!finish.status.ok()) outcome = finish.status;
    Hear(finish.attempt_id, router::DecodeEnded{finish.attempt_id, outcome});
  };
  ways.prompt_done = [this](const prefill::PromptDone& done) {
    Hear(done.attempt_id,
         router::PrefillEnded{done.attempt_id, absl::OkStatus(), {}, done.outcome.cached_tokens});
  };
  ways.tokens = [this](const auto& tokens) { HearTokens(tokens); };
  ways.witness = witness_;
  ways.failed = [this](const absl::Status& status) { Fail(status); };
  ways.inbound = [this](const InstanceRef& decode, int stage) -> Pipe& {
    return DecodeOf(decode).inbound(stage);
  };
  ways.committed = [this](const Ticket& ticket, int stage,
                          const std::optional<SampledToken>& first_token) {
    DecodeOf(ticket.decode).Commit(ticket, stage, first_token);
  };
  ways.request_of = [this](uint64_t attempt_id) {
    return static_cast<int>(call_of_attempt_.at(attempt_id) - 1);
  };
  ways.keeps = [this](int64_t begin_us, int chunks) { return Keeps(begin_us, chunks); };
  const InstanceRef self = DescribeStage(shape_, chain, 0).instance;
  chain_of_[self] = chains_.size();
  chains_.push_back(
      std::make_unique<SimulatedChain>(shape_, ChainShapeOf(shape_), time_, std::move(ways)));
  AddSpeaker(self, shape_.prefill_pages, [&chain = *chains_.back()] { return chain.load(); });
}

void SimulatedCluster::AddDecode(int decode) {
  SimulatedDecode::Ways ways;
  ways.replied = [this](uint64_t attempt_id, const absl::StatusOr<Ticket>& ticket) {
    Hear(attempt_id, router::ReserveReplied{attempt_id, ticket});
  };
  ways.tokens = [this](const auto& tokens) { HearTokens(tokens); };
  ways.finished = [this](uint64_t attempt_id, const absl::StatusOr<FinishReason>& outcome) {
    Hear(attempt_id, router::DecodeEnded{attempt_id, outcome});
  };
  ways.failed = [this](const absl::Status& status) { Fail(status); };
  const InstanceRef self = DescribeDecode(shape_, decode, 0).instance;
  decode_of_[self] = decode_services_.size();
  decode_services_.push_back(
      std::make_unique<SimulatedDecode>(shape_, decode, time_, std::move(ways)));
  AddSpeaker(self, shape_.decode_pages,
             [&service = *decode_services_.back()] { return service.load(); });
}

void SimulatedCluster::AddSpeaker(const InstanceRef& self, int pages,
                                  std::function<prefill::PlannerLoad()> load) {
  auto speaker = std::make_unique<Speaker>(time_, [this, self] { Beat(*speakers_.at(self)); });
  speaker->pages = pages;
  speaker->load = std::move(load);
  speakers_[self] = std::move(speaker);
}

// All workers register, chains are linked and ready, before the first request comes.
void SimulatedCluster::Join(Router& router) {
  std::vector<router::WorkerInfo> workers;
  for (int chain = 0; chain < shape_.chains; ++chain) {
    for (int stage = 0; stage < static_cast<int>(shape_.stages.size()); ++stage) {
      workers.push_back(DescribeStage(shape_, chain, stage));
    }
  }
  for (int decode = 0; decode < shape_.decodes; ++decode) {
    for (int stage = 0; stage < static_cast<int>(shape_.decode_stages.size()); ++stage) {
      workers.push_back(DescribeDecode(shape_, decode, stage));
    }
  }
  // A worker's call has the same number at every router.
  for (size_t i = 0; i < workers.size(); ++i) {
    Handle(router, router::LeaseAsked{i + 1, workers[i], {}});
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    const router::WorkerInfo& worker = workers[i];
    router::HeartbeatReceived heartbeat;
    heartbeat.rpc_id = i + 1;
    const router::Membership& members = router.core.membership();
    const router::Worker* here = members.Find(worker.instance);
    if (here == nullptr) return;  // Refused: the run fails.
    for (const router::WorkerInfo& member : members.ListFor(*here)) {
      heartbeat.linked.push_back(member.instance.incarnation);
    }
    heartbeat.ready = true;
    heartbeat.load.free_pages = worker.page_count;
    Handle(router, heartbeat);
    const auto speaker = speakers_.find(worker.instance);
    if (speaker != speakers_.end()) speaker->second->heartbeat = std::move(heartbeat);
  }
}

// As often as the worker's cluster client does (services/worker/core). A router alone knows its
// workers' loads, and what they have cached, by what it has sent them.
void SimulatedCluster::Beat(Speaker& speaker) {
  if (routers_.size() == 1 || ended_ == workload_.requests.size()) return;
  const prefill::PlannerLoad load = speaker.load();
  speaker.heartbeat.load = {load.open, load.queued, load.queued_tokens,
                            speaker.pages - load.owned_pages, load.ending_pages};
  for (const auto& router : routers_) {
    router::HeartbeatReceived heartbeat = speaker.heartbeat;
    worker::TakenPrompts::News news = speaker.taken.Untold(router->incarnation);
    heartbeat.taken_prompts = std::move(news.prompts);
    speaker.taken.Told(router->incarnation, news.last);
    time_.Deliver([this, &router = *router, heartbeat] { Handle(router, heartbeat); });
  }
  speaker.beat_us = time_.now_us();
  const bool busy = load.open + load.queued > 0;
  speaker.due.Set(time_.now_us() +
                  (busy ? worker::kLoadGapUs : worker::MembershipTimes().heartbeat_us));
}

void SimulatedCluster::Perform(const router::AnswerLease& action) { Fail(action.status); }

// ---- Requests ----

void SimulatedCluster::SubmitNext() {
  if (submitted_ < workload_.requests.size()) Submit(static_cast<int>(submitted_));
}

void SimulatedCluster::Submit(int request) {
  ++submitted_;
  const uint64_t call_id = static_cast<uint64_t>(request) + 1;
  const WorkloadRequest& asked = workload_.requests[static_cast<size_t>(request)];
  RecordOf(call_id).arrival_us = time_.now_us();
  router::CallSubmitted event;
  event.call_id = call_id;
  event.request_id = absl::StrCat("request-", request);
  event.prompt_tokens = asked.prompt_tokens;
  event.max_tokens = asked.output_tokens;
  event.deadline_us = time_.now_us() + shape_.request_timeout_us;
  event.prefix = PrefixOf(call_id);
  Handle(RouterOf(call_id), event);
}

std::vector<uint64_t> SimulatedCluster::PrefixOf(uint64_t call_id) const {
  return router::PrefixKeys(PromptOf(workload_.requests[call_id - 1], call_id - 1), "");
}

void SimulatedCluster::Handle(Router& router, const router::Event& event) {
  std::vector<router::Action> actions;
  waiting_ -= router.core.load().waiting;
  router.core.Handle(event, time_.now_us(), actions);
  waiting_ += router.core.load().waiting;
  record_.waiting.Set(time_.now_us(), waiting_);
  for (const router::Action& action : actions) {
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
  router.alarm.Set(router.core.NextDeadlineUs());
}

void SimulatedCluster::Hear(uint64_t attempt_id, router::Event event) {
  const uint64_t call_id = call_of_attempt_.at(attempt_id);
  if (const auto* ended = std::get_if<router::PrefillEnded>(&event)) {
    RecordOf(call_id).cached_tokens = ended->cached_tokens;
  }
  time_.Deliver(
      [this, &router = RouterOf(call_id), event = std::move(event)] { Handle(router, event); });
}

// One event for all tokens of a step: a step has one for each sequence.
void SimulatedCluster::HearTokens(const std::vector<prefill::DeliverToken>& tokens) {
  time_.Deliver([this, tokens] {
    for (const prefill::DeliverToken& token : tokens) {
      Handle(RouterOf(call_of_attempt_.at(token.attempt_id)),
             router::TokenReceived{token.attempt_id, token.token});
    }
  });
}

void SimulatedCluster::Perform(const router::Reserve& action) {
  const WorkloadRequest& asked = workload_.requests[action.call_id - 1];
  call_of_attempt_[action.attempt_id] = action.call_id;
  prefill::StartRequested request;
  request.attempt_id = action.attempt_id;
  request.prompt_tokens = asked.prompt_tokens + action.drawn_tokens;
  request.stop.max_tokens = asked.output_tokens - action.drawn_tokens;
  request.stop.ignore_eos = true;
  request.writers = action.writers;
  request.deadline_us = action.deadline_us;
  time_.Deliver([&decode = DecodeOf(action.decode), request] { decode.Reserve(request); });
}

void SimulatedCluster::Perform(const router::OpenStream& action) {
  time_.Deliver([&decode = DecodeOf(action.decode), action] {
    decode.Open(action.attempt_id, action.generation);
  });
}

// What both kinds of chains are asked.
template <typename Action>
prefill::StartRequested SimulatedCluster::StartOf(const Action& action) const {
  prefill::StartRequested start;
  start.attempt_id = action.attempt_id;
  const WorkloadRequest& asked = workload_.requests[action.call_id - 1];
  start.prompt_tokens = asked.prompt_tokens + action.drawn_tokens;
  if (!asked.hash_ids.empty()) {
    std::vector<int32_t> tokens = PromptOf(asked, action.call_id - 1);
    tokens.resize(static_cast<size_t>(start.prompt_tokens), 1);  // All that is drawn is 1.
    start.tokens = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
  }
  start.deadline_us = action.deadline_us;
  start.head_start_us = action.head_start_us;
  return start;
}

void SimulatedCluster::Perform(const router::StartPrefill& action) {
  prefill::StartRequested start = StartOf(action);
  start.ticket = action.ticket;
  Take(action.stage0, action.call_id, start);
}

void SimulatedCluster::Perform(const router::StartGeneration& action) {
  call_of_attempt_[action.attempt_id] = action.call_id;
  prefill::StartRequested start = StartOf(action);
  const WorkloadRequest& asked = workload_.requests[action.call_id - 1];
  start.stop.max_tokens = asked.output_tokens - action.drawn_tokens;
  start.stop.ignore_eos = true;
  Take(action.stage0, action.call_id, start);
}

void SimulatedCluster::Take(const InstanceRef& stage0, uint64_t call_id,
                            const prefill::StartRequested& start) {
  time_.Deliver([this, stage0, call_id, start] {
    Speaker& speaker = *speakers_.at(stage0);
    if (routers_.size() > 1) {
      speaker.taken.Add(RouterOf(call_id).incarnation, PrefixOf(call_id));
      speaker.due.Set(speaker.beat_us + worker::kLoadGapUs);
    }
    ChainOf(stage0).Handle(start);
  });
}

void SimulatedCluster::Perform(const router::AbortPrefill& action) {
  time_.Deliver([&chain = ChainOf(action.stage0), action] {
    chain.Handle(prefill::AbortRequested{action.attempt_id, absl::CancelledError(action.reason)});
  });
}

void SimulatedCluster::Perform(const router::AbortDecode& action) {
  time_.Deliver([&decode = DecodeOf(action.decode), action] {
    decode.Abort(action.attempt_id, absl::CancelledError(action.reason));
  });
}

void SimulatedCluster::Perform(const router::DeliverToken& action) {
  RequestRecord& record = RecordOf(action.call_id);
  if (record.tokens++ == 0) {
    record.first_token_us = time_.now_us();
  } else {
    record_.between_tokens.Add(time_.now_us() - record.last_token_us);
  }
  record.last_token_us = time_.now_us();
}

void SimulatedCluster::Perform(const router::FinishCall& action) {
  RequestRecord& record = RecordOf(action.call_id);
  record.end_us = time_.now_us();
  record.status = action.outcome.status();
  record.attempts = action.attempts;
  record.chain = action.chain_id;
  record.decode = action.decode_instance;
  ++ended_;
  if (workload_.concurrency == 0) return;
  time_.At(time_.now_us(), [this] { SubmitNext(); });
}

// ---- The run ----

bool SimulatedCluster::Keeps(int64_t begin_us, int chunks) {
  if (begin_us < timeline_.from_us || begin_us >= timeline_.to_us) return false;
  record_.timeline_full = record_.timeline_full || kept_ + chunks > timeline_.limit;
  if (record_.timeline_full) return false;  // Once one is left out, all later ones are.
  kept_ += chunks;
  return true;
}

absl::StatusOr<RunRecord> SimulatedCluster::Run() {
  BATON_RETURN_IF_ERROR(failure_);
  for (const auto& [self, speaker] : speakers_) Beat(*speaker);
  if (workload_.concurrency > 0) {
    for (int client = 0; client < workload_.concurrency; ++client) {
      time_.At(0, [this] { SubmitNext(); });
    }
  } else {
    for (size_t i = 0; i < workload_.requests.size(); ++i) {
      time_.At(workload_.requests[i].arrival_us, [this, i] { Submit(static_cast<int>(i)); });
    }
  }
  while (ended_ < workload_.requests.size()) {
    const bool goes_on = time_.queue.Step();
    BATON_CHECK(goes_on) << "nothing happens, and requests have not ended";
    if (!failure_.ok()) {
      return Annotate(failure_, absl::StrCat("after ", time_.now_us() / 1000,
                                             " ms the chain would fail, as a real one would"));
    }
    if (time_.queue.executed() >= kEventsMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the run has not ended after ", kEventsMax, " events, ", time_.now_us() / 1'000'000,
          " s of virtual time and ", ended_, " of ", workload_.requests.size(), " requests"));
    }
  }
  return TakeRecord();
}

RunRecord SimulatedCluster::TakeRecord() {
  for (const auto& chain : chains_) record_.chains.push_back(chain->TakeRecord());
  for (const auto& decode : decode_services_) record_.decodes.push_back(decode->TakeRecord());
  record_.end_us = time_.now_us();
  return record_;
}

}  // namespace baton::simulator
