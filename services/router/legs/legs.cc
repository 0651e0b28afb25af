#include "services/router/legs/legs.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/tracing/grpc_propagation.h"
#include "services/router/legs/leg_status.h"

namespace baton::router {
namespace {

using SystemTime = std::chrono::system_clock::time_point;

// gRPC's own deadline is only a backstop behind the core's: it must not win the race, since the
// core's status says more.
constexpr int64_t kBackstopUs = 1'000'000;
constexpr auto kAbortDeadline = std::chrono::seconds(2);

int64_t RemainingMs(int64_t deadline_us) {
  if (deadline_us == kNeverUs) return std::numeric_limits<int32_t>::max();
  return std::max<int64_t>(1, (deadline_us - NowUs()) / 1000);
}

// Whether decode looks at the prompt's tokens when it draws.
bool LooksAtPrompt(const v1::SamplingParams& sampling) {
  return sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1;
}

SystemTime CallDeadline(int64_t deadline_us) {
  if (deadline_us == kNeverUs) return SystemTime::max();
  const int64_t remaining_us = std::max<int64_t>(0, deadline_us - NowUs()) + kBackstopUs;
  return std::chrono::system_clock::now() + std::chrono::microseconds(remaining_us);
}

}  // namespace

// One unary call; alive until its callback has run.
template <typename Request, typename Response>
struct Legs::Unary {
  Unary(rpc::CallTracker& tracker, std::shared_ptr<WorkerStubs> stubs)
      : context(tracker), worker(std::move(stubs)) {}

  rpc::TrackedContext context;
  const std::shared_ptr<WorkerStubs> worker;
  Request request;
  Response response;
};

Legs::Legs(EventLoop& loop, LegEvents& events,
           std::function<std::string(const InstanceRef&)> address_of)
    : loop_(loop), events_(events), address_of_(std::move(address_of)) {}

Legs::~Legs() {
  tracker_.CancelAll();
  calls_.clear();
  tracker_.WaitIdle();
}

bool Legs::WaitIdle(int64_t timeout_ms) {
  return tracker_.WaitIdle(std::chrono::milliseconds(timeout_ms));
}

// The mailbox has room for the events of all calls (RouterShell bounds its submissions), so that a
// refusal means that the loop has stopped and nobody is left to be told.
void Legs::Post(std::function<void()> task) {
  if (!loop_.Post(std::move(task))) {
    LOG(kDebug) << "a call ended after the router's loop";
  }
}

absl::StatusOr<std::shared_ptr<WorkerStubs>> Legs::Worker(const InstanceRef& instance,
                                                          const std::string& leg) {
  const std::string address = address_of_(instance);
  if (!address.empty()) return channels_.Get(instance, address);
  return WithLeg(
      absl::UnavailableError(absl::StrCat(leg, " ", instance.id, " has left the cluster")), leg,
      instance.id);
}

void Legs::Reserve(const router::Reserve& action, const LegRequest& request) {
  const uint64_t attempt_id = action.attempt_id;
  auto worker = Worker(action.decode, "decode");
  if (const absl::Status injected = Failpoint("router.reserve"); !injected.ok()) worker = injected;
  if (!worker.ok()) {
    return Post([this, attempt_id, status = worker.status()] {
      events_.OnReserveReplied(attempt_id, status);
    });
  }
  auto call = std::make_shared<Unary<v1::ReserveRequest, v1::ReserveResponse>>(tracker_, *worker);
  call->context->set_deadline(CallDeadline(action.deadline_us));
  tracing::Inject(request.trace, *call->context);
  call->request.set_attempt_id(attempt_id);
  call->request.set_prompt_tokens(static_cast<int32_t>(request.prompt_ids.size()));
  if (LooksAtPrompt(request.sampling)) {
    call->request.mutable_prompt_token_ids()->Assign(request.prompt_ids.begin(),
                                                     request.prompt_ids.end());
  }
  *call->request.mutable_sampling() = request.sampling;
  for (const KvWriter& writer : action.writers) {
    *call->request.add_writers() = rpc::ToProto(writer);
  }
  call->request.set_timeout_ms(RemainingMs(action.deadline_us));
  Calls& calls = calls_[attempt_id];
  calls.decode = *worker;
  calls.reserve = std::shared_ptr<rpc::TrackedContext>(call, &call->context);
  (*worker)->decode->async()->Reserve(
      &*call->context, &call->request, &call->response,
      [this, call, attempt_id](const grpc::Status& grpc_status) {
        const absl::Status status =
            LegStatus(grpc_status, "decode", "Decode.Reserve", *call->worker);
        absl::StatusOr<Ticket> ticket = Ticket();
        if (status.ok()) {
          ticket = rpc::FromProto(call->response.ticket(), "ticket");
          if (!ticket.ok()) {
            ticket = LegProtocolError(
                absl::StrCat("answered with a bad ticket: ", ticket.status().message()), "decode",
                *call->worker);
          }
        } else {
          ticket = status;
        }
        Post([this, attempt_id, ticket = std::move(ticket)]() mutable {
          events_.OnReserveReplied(attempt_id, std::move(ticket));
        });
      });
}

void Legs::OpenStream(const router::OpenStream& action, const tracing::TraceContext& trace) {
  const uint64_t attempt_id = action.attempt_id;
  const auto worker = Worker(action.decode, "decode");
  if (!worker.ok()) {
    return Post([this, attempt_id, status = worker.status()] {
      events_.OnDecodeEnded(attempt_id, status);
    });
  }
  v1::DecodeGenerateRequest request;
  request.set_attempt_id(attempt_id);
  request.set_generation(action.generation);
  // The stream is known only once it has started; the loop has handed the handle on by the time
  // that it runs the first posted event.
  auto handle = std::make_shared<std::weak_ptr<DecodeStream>>();
  DecodeStream::Callbacks callbacks;
  callbacks.on_token = [this, attempt_id, handle](SampledToken token) {
    return loop_.Post([this, attempt_id, handle, token = std::move(token)]() mutable {
      const absl::Status injected = Failpoint("router.token");
      if (injected.ok()) {
        events_.OnToken(attempt_id, std::move(token));
      } else {
        events_.OnDecodeEnded(attempt_id, injected);
      }
      if (const auto stream = handle->lock()) stream->Continue();
    });
  };
  callbacks.on_end = [this, attempt_id](absl::StatusOr<FinishReason> outcome) {
    Post([this, attempt_id, outcome = std::move(outcome)]() mutable {
      events_.OnDecodeEnded(attempt_id, std::move(outcome));
    });
  };
  const auto stream = DecodeStream::Start(
      *worker, tracker_, request, CallDeadline(action.deadline_us), trace, std::move(callbacks));
  *handle = stream;
  Calls& calls = calls_[attempt_id];
  calls.reserve.reset();
  calls.stream = stream;
}

void Legs::StartPrefill(const router::StartPrefill& action, const LegRequest& request) {
  const uint64_t attempt_id = action.attempt_id;
  auto worker = Worker(action.stage0, "prefill");
  if (const absl::Status injected = Failpoint("router.start"); !injected.ok()) worker = injected;
  if (!worker.ok()) {
    return Post([this, attempt_id, status = worker.status()] {
      events_.OnPrefillEnded(attempt_id, status, {}, {});
    });
  }
  auto call = std::make_shared<Unary<v1::StartRequest, v1::StartResponse>>(tracker_, *worker);
  call->context->set_deadline(CallDeadline(action.deadline_us));
  tracing::Inject(request.trace, *call->context);
  call->request.set_attempt_id(attempt_id);
  call->request.mutable_prompt_token_ids()->Assign(request.prompt_ids.begin(),
                                                   request.prompt_ids.end());
  *call->request.mutable_sampling() = request.sampling;
  *call->request.mutable_ticket() = rpc::ToProto(action.ticket);
  call->request.set_timeout_ms(RemainingMs(action.deadline_us));
  Calls& calls = calls_[attempt_id];
  calls.stage0 = *worker;
  calls.start = std::shared_ptr<rpc::TrackedContext>(call, &call->context);
  (*worker)->prefill->async()->Start(
      &*call->context, &call->request, &call->response,
      [this, call, attempt_id](const grpc::Status& grpc_status) {
        absl::Status status = LegStatus(grpc_status, "prefill", "Prefill.Start", *call->worker);
        std::vector<SampledToken> prompt;
        prompt.reserve(static_cast<size_t>(call->response.prompt_tokens_size()));
        for (const auto& token : call->response.prompt_tokens()) {
          prompt.push_back(rpc::SampledFromProto(token.token_id(), token.logprobs()));
        }
        Post([this, attempt_id, status = std::move(status), prompt = std::move(prompt),
              report = std::move(*call->response.mutable_report())]() mutable {
          events_.OnPrefillEnded(attempt_id, std::move(status), std::move(report),
                                 std::move(prompt));
        });
      });
}

void Legs::Abort(const AbortDecode& action) {
  const auto entry = calls_.find(action.attempt_id);
  if (entry == calls_.end() || entry->second.decode == nullptr) return;  // Nothing was ever sent.
  Calls& calls = entry->second;
  if (calls.reserve != nullptr) (*calls.reserve)->TryCancel();
  if (calls.stream != nullptr) calls.stream->Cancel();
  auto call = std::make_shared<Unary<v1::DecodeAbortRequest, v1::DecodeAbortResponse>>(
      tracker_, calls.decode);
  call->context->set_deadline(std::chrono::system_clock::now() + kAbortDeadline);
  call->request.set_attempt_id(action.attempt_id);
  call->request.set_reason(action.reason);
  // Nobody waits for the answer: the decode's own deadlines are behind a lost abort.
  calls.decode->decode->async()->Abort(&*call->context, &call->request, &call->response,
                                       [call](const grpc::Status&) {});
  calls.reserve.reset();
  calls.stream.reset();
  calls.decode.reset();
}

void Legs::Abort(const AbortPrefill& action) {
  const auto entry = calls_.find(action.attempt_id);
  if (entry == calls_.end() || entry->second.stage0 == nullptr) return;
  Calls& calls = entry->second;
  if (calls.start != nullptr) (*calls.start)->TryCancel();
  auto call = std::make_shared<Unary<v1::PrefillAbortRequest, v1::PrefillAbortResponse>>(
      tracker_, calls.stage0);
  call->context->set_deadline(std::chrono::system_clock::now() + kAbortDeadline);
  call->request.set_attempt_id(action.attempt_id);
  call->request.set_reason(action.reason);
  calls.stage0->prefill->async()->Abort(&*call->context, &call->request, &call->response,
                                        [call](const grpc::Status&) {});
  calls.start.reset();
  calls.stage0.reset();
}

}  // namespace baton::router
