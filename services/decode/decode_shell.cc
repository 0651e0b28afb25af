#include "services/decode/decode_shell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::decode {

DecodeShell::DecodeShell(const Options& options) : options_(options), core_(options.limits) {}

void DecodeShell::Reserve(ReserveRequested request, std::shared_ptr<SequenceSampling> sampling,
                          std::shared_ptr<ReserveCall> call) {
  absl::Status status = Failpoint("decode.reserve");
  // The core would refuse it too, but its answer could not be told from one to the earlier call.
  if (sessions_.contains(request.attempt_id) ||
      compiling_.Find(Is(request.attempt_id)) != nullptr) {
    status =
        absl::AlreadyExistsError(absl::StrCat("attempt ", request.attempt_id, " is held already"));
  }
  if (!status.ok()) {
    call->Refuse(WithLeg(status, "decode", options_.limits.self.id));
    return;
  }
  const std::shared_ptr<const PendingConstraint> constraint = sampling->sampler.params().constraint;
  Asked asked{std::move(request), std::move(sampling), std::move(call)};
  if (core_.draining() || !compiling_.Hold(constraint, asked)) Begin(std::move(asked));
}

void DecodeShell::Begin(Asked asked) {
  Session& session = sessions_[asked.request.attempt_id];
  session.sampling = std::move(asked.sampling);
  session.arrived_us = NowUs();
  session.reserve = std::move(asked.call);
  Handle(std::move(asked.request));
}

void DecodeShell::BeginCompiled(int64_t now_us) {
  for (Asked& asked : compiling_.Take(now_us)) Begin(std::move(asked));
}

void DecodeShell::BeginDrain(int64_t deadline_us) {
  Handle(DrainBegan{deadline_us});
  BeginCompiled(kNeverUs);  // They are refused.
}

void DecodeShell::Open(uint64_t attempt_id, uint64_t generation,
                       std::shared_ptr<worker::TokenStream> stream) {
  opening_ = std::move(stream);
  Handle(StreamOpened{attempt_id, generation});
  opening_ = nullptr;
}

void DecodeShell::Abort(uint64_t attempt_id, const absl::Status& reason) {
  if (const auto asked = compiling_.Remove(Is(attempt_id))) {
    return asked->call->Refuse(WithLeg(reason, "decode", options_.limits.self.id));
  }
  Handle(AbortRequested{attempt_id, reason});
}

void DecodeShell::Release(uint64_t attempt_id, uint64_t generation) {
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.generation != generation) return;
  Handle(AbortRequested{attempt_id, absl::CancelledError("released")});
}

int DecodeShell::FlushCache() {
  const int before = core_.load().cached_pages;
  Handle(decode::FlushCache{});
  return before - core_.load().cached_pages;
}

void DecodeShell::Cancelled(uint64_t attempt_id, const ReserveCall* call) {
  // Its caller has its answer already.
  compiling_.Remove([&](const Asked& asked) { return asked.call.get() == call; });
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.reserve.get() != call) return;
  Handle(AbortRequested{attempt_id, absl::CancelledError("the reservation was cancelled")});
}

void DecodeShell::Cancelled(uint64_t attempt_id, const worker::TokenStream* stream) {
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.stream.get() != stream) return;
  Handle(AbortRequested{attempt_id, absl::CancelledError("the stream was cancelled")});
}

void DecodeShell::OnLeaseEvents(const std::vector<LeaseEvent>& events) {
  for (const LeaseEvent& event : events) {
    std::visit([this](const auto& e) { Handle(e); }, event);
  }
}

void DecodeShell::OnStepFinished(const StepFinished& finished, int64_t compute_us) {
  Metrics& metrics = *options_.metrics;
  metrics.Increment(Metric::kDecodeStepsTotal);
  metrics.Observe(Metric::kDecodeStepSeconds, static_cast<double>(compute_us) * 1e-6);
  metrics.Increment(Metric::kGenerationTokensTotal, static_cast<double>(finished.outputs.size()));
  if (!finished.status.ok()) {
    LOG(kError) << "decode step " << finished.step
                << " failed: " << DescribeStatus(finished.status);
  }
  Handle(finished);
}

int64_t DecodeShell::Wake(int64_t now_us) {
  BeginCompiled(now_us);
  if (core_.NextDeadlineUs() <= now_us) Handle(Tick{});
  return std::min(core_.NextDeadlineUs(), compiling_.NextUs(now_us));
}

// ---- Actions ----

void DecodeShell::HandleOne(const Event& event) {
  std::vector<Action> actions;
  core_.Handle(event, NowUs(), actions);
  const bool refused = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<RefuseStream>(action);
  });
  if (const auto* opened = std::get_if<StreamOpened>(&event); opened != nullptr && !refused) {
    Session& session = sessions_.at(opened->attempt_id);
    session.stream = opening_;
    session.reserve = nullptr;
  }
  for (Action& action : actions) {
    std::visit([this](auto& a) { Perform(a); }, action);
  }
}

void DecodeShell::Perform(ReplyReserve& action) {
  const auto found = sessions_.find(action.attempt_id);
  BATON_CHECK(found != sessions_.end()) << "attempt " << action.attempt_id;
  Session& session = found->second;
  if (!action.ticket.ok()) {
    session.reserve->Refuse(action.ticket.status());
    sessions_.erase(found);
    return;
  }
  session.generation = action.ticket->generation;
  options_.metrics->Observe(Metric::kQueueSeconds,
                            static_cast<double>(NowUs() - session.arrived_us) * 1e-6);
  // Goes through the data thread, where the grant must be in force before a writer can use the
  // ticket, and back: gRPC's work for an answer must not delay the data thread.
  options_.kv->After(
      [post = options_.post, call = session.reserve, ticket = *std::move(action.ticket)] {
        if (post([call, ticket] { call->Reply(ticket); })) return;
        call->Refuse(absl::UnavailableError("the decode service has stopped"));
      });
}

void DecodeShell::Perform(GrantKv& action) {
  if (action.rank > 0) return options_.ranks->Send(action);
  options_.kv->Grant(std::move(action.grant));
}

void DecodeShell::Perform(const RevokeKv& action) {
  options_.kv->Revoke(action.slot, action.generation);
  if (options_.ranks != nullptr) options_.ranks->Send(action);
}

void DecodeShell::Perform(const DeliverToken& action) {
  const auto found = sessions_.find(action.attempt_id);
  BATON_CHECK(found != sessions_.end() && found->second.stream != nullptr)
      << "a token for attempt " << action.attempt_id << ", which has no stream";
  const Session& session = found->second;
  if (absl::Status status = Failpoint("decode.emit"); !status.ok()) {
    Handle(AbortRequested{action.attempt_id, WithLeg(status, "decode", options_.limits.self.id)});
    return;
  }
  if (session.stream->PushToken(action.token, session.sampling->sampler.params().logprobs)) return;
  session.stream->Break();
  Handle(AbortRequested{action.attempt_id,
                        absl::ResourceExhaustedError("the reader of the stream is too slow")});
}

void DecodeShell::Perform(const RefuseStream& action) {
  BATON_CHECK(opening_ != nullptr) << "no stream is being opened";
  opening_->Conclude(action.status);
}

void DecodeShell::Perform(const Finish& action) {
  const auto found = sessions_.find(action.attempt_id);
  BATON_CHECK(found != sessions_.end()) << "attempt " << action.attempt_id;
  const Session session = std::move(found->second);
  sessions_.erase(found);
  if (session.stream != nullptr) session.stream->Conclude(action.outcome);
}

void DecodeShell::Perform(RunStep& action) {
  StepRunner::Job job;
  for (const RunStep::Sequence& sequence : action.sequences) {
    job.samplings.push_back(sessions_.at(sequence.attempt_id).sampling);
  }
  options_.metrics->Observe(Metric::kDecodeBatchSize, static_cast<double>(action.sequences.size()));
  if (options_.ranks != nullptr) options_.ranks->Send(action);
  job.step = std::move(action);
  options_.runner->Run(std::move(job));
}

}  // namespace baton::decode
