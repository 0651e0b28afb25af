#include "services/router/legs/legs.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <variant>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"

namespace baton::router {
namespace {

using SystemTime = std::chrono::system_clock::time_point;

constexpr std::chrono::seconds kFlushTimeout{10};

SystemTime CallDeadline(int64_t give_up_us) {
  if (give_up_us == kNeverUs) return SystemTime::max();
  return std::chrono::system_clock::now() +
         std::chrono::microseconds(std::max<int64_t>(0, give_up_us - NowUs()));
}

// The prompt's tokens from the second on, if the chain was asked to tell them.
std::vector<int32_t> ExpectedTokens(const v1::StartRequest& request) {
  const auto& ids = request.fixed_prompt_token_ids();
  if (!request.sampling().prompt_logprobs() || ids.empty()) return {};
  return {ids.begin() + 1, ids.end()};
}

// The client of a request that goes on has been told of its prompt.
v1::SamplingParams SamplingOf(const LegRequest& request) {
  v1::SamplingParams sampling = request.sampling;
  if (request.drawn_tokens == 0) return sampling;
  sampling.set_drawn_tokens(request.drawn_tokens);
  sampling.clear_prompt_logprobs();
  return sampling;
}

std::vector<SampledToken> TokensOf(const v1::StartResponse& prompt) {
  std::vector<SampledToken> tokens;
  tokens.reserve(static_cast<size_t>(prompt.prompt_tokens_size()));
  for (const auto& token : prompt.prompt_tokens()) {
    tokens.push_back(rpc::SampledFromProto(token.token_id(), token.logprobs()));
  }
  return tokens;
}

}  // namespace

// One unary call; alive until its callback has run.
template <typename RequestType, typename ResponseType>
struct Legs::Unary {
  Unary(rpc::CallTracker& tracker, std::shared_ptr<WorkerStubs> stubs)
      : context(tracker), worker(std::move(stubs)) {}

  rpc::TrackedContext context;
  const std::shared_ptr<WorkerStubs> worker;
  RequestType request;
  ResponseType response;
};

Legs::Legs(EventLoop& loop, uint64_t incarnation, int vocab_size, Callbacks callbacks,
           std::shared_ptr<const rpc::ClusterSecurity> security)
    : loop_(loop),
      incarnation_(incarnation),
      callbacks_(std::move(callbacks)),
      core_(vocab_size),
      channels_(std::move(security)) {}

Legs::~Legs() {
  tracker_.CancelAll();
  relay_tracker_.CancelAll();
  cancels_.clear();
  relays_.clear();
  tracker_.WaitIdle();
  relay_tracker_.WaitIdle();
}

void Legs::KeepWorkers(const std::vector<InstanceRef>& workers) {
  channels_.Keep(workers);
  std::erase_if(relays_, [&workers](const auto& entry) {
    const bool left = std::find(workers.begin(), workers.end(), entry.first) == workers.end();
    if (left) entry.second->Cancel();
    return left;
  });
}

bool Legs::WaitIdle(int64_t timeout_ms) {
  return tracker_.WaitIdle(std::chrono::milliseconds(timeout_ms));
}

// The mailbox has room for the events of all calls (RouterShell bounds its submissions), so that a
// refusal means that the loop has stopped and no recipient is left.
void Legs::PostEnd(uint64_t attempt_id, LegCall call, std::function<void()> task) {
  const bool posted = loop_.PostCompletion([this, attempt_id, call, task = std::move(task)] {
    cancels_.erase({attempt_id, call});
    task();
  });
  if (!posted) {
    LOG(kDebug) << "a call ended after the router's loop";
  }
}

// ---- What the core decides ----

void Legs::Perform(const CancelCall& action) {
  const auto running = cancels_.find({action.attempt_id, action.call});
  if (running == cancels_.end()) return;
  const std::function<void()> cancel = running->second;  // Which may end the call at once.
  cancel();
}

void Legs::Perform(const SendAbort& action) {
  const auto send = [&](auto call, auto begin) {
    call->context->set_deadline(std::chrono::system_clock::now() +
                                std::chrono::milliseconds(action.timeout_ms));
    call->request.set_attempt_id(action.attempt_id);
    call->request.set_reason(action.reason);
    begin(*call, [call](const grpc::Status&) {});
  };
  const std::shared_ptr<WorkerStubs> worker = channels_.Get(action.worker, action.address);
  if (action.leg == Role::kDecode) {
    send(std::make_shared<Unary<v1::DecodeAbortRequest, v1::DecodeAbortResponse>>(tracker_, worker),
         [](auto& call, auto done) {
           call.worker->decode->async()->Abort(&*call.context, &call.request, &call.response, done);
         });
  } else {
    send(std::make_shared<Unary<v1::PrefillAbortRequest, v1::PrefillAbortResponse>>(tracker_,
                                                                                    worker),
         [](auto& call, auto done) {
           call.worker->prefill->async()->Abort(&*call.context, &call.request, &call.response,
                                                done);
         });
  }
}

template <typename Action>
std::optional<BeginCall> Legs::Begin(const Action& action, const InstanceRef& worker) {
  std::optional<BeginCall> begin;
  Change([&](std::vector<LegAction>& actions) {
    begin = core_.Open(action, callbacks_.address_of(worker), NowUs(), actions);
  });
  return begin;
}

template <typename Call>
std::shared_ptr<Call> Legs::MakeCall(const BeginCall& begin, const tracing::TraceContext& trace) {
  auto call = std::make_shared<Call>(tracker_, channels_.Get(begin.worker, begin.address));
  call->context->set_deadline(CallDeadline(begin.give_up_us));
  tracing::Inject(trace, *call->context);
  cancels_[{begin.attempt_id, begin.call}] = [call] { call->context->TryCancel(); };
  return call;
}

// ---- The calls ----

void Legs::Reserve(const router::Reserve& action, const LegRequest& request) {
  const auto begin = Begin(action, action.decode);
  if (!begin.has_value()) return;
  const uint64_t attempt_id = action.attempt_id;
  const auto end = [this, attempt_id](const absl::Status& status,
                                      const absl::StatusOr<Ticket>& ticket) {
    PostEnd(attempt_id, LegCall::kReserve, [this, attempt_id, status, ticket] {
      Change([&](auto& actions) { core_.ReserveEnded(attempt_id, status, ticket, actions); });
    });
  };
  if (const absl::Status injected = Failpoint("router.reserve"); !injected.ok()) {
    return end(injected, Ticket());
  }
  const auto call = MakeCall<Unary<v1::ReserveRequest, v1::ReserveResponse>>(*begin, request.trace);
  call->request.set_attempt_id(attempt_id);
  call->request.set_cache_salt(request.cache_salt);
  call->request.mutable_prompt_token_ids()->Assign(request.prompt_ids.begin(),
                                                   request.prompt_ids.end());
  *call->request.mutable_sampling() = SamplingOf(request);
  for (const KvWriter& writer : action.writers) {
    *call->request.add_writers() = rpc::ToProto(writer);
  }
  call->request.set_timeout_ms(begin->timeout_ms);
  call->worker->decode->async()->Reserve(
      &*call->context, &call->request, &call->response, [call, end](const grpc::Status& status) {
        end(rpc::FromGrpc(status), rpc::FromProto(call->response.ticket(), "ticket"));
      });
}

void Legs::OpenStream(const router::OpenStream& action, const tracing::TraceContext& trace) {
  const auto begin = Begin(action, action.decode);
  if (!begin.has_value()) return;
  v1::DecodeGenerateRequest request;
  request.set_attempt_id(action.attempt_id);
  request.set_generation(action.generation);
  Stream(*begin, std::move(request), trace, /*expected=*/std::nullopt);
}

void Legs::StartGeneration(const router::StartGeneration& action, const LegRequest& request) {
  const auto begin = Begin(action, action.stage0);
  if (!begin.has_value()) return;
  const uint64_t attempt_id = action.attempt_id;
  if (const absl::Status injected = Failpoint("router.start"); !injected.ok()) {
    return PostEnd(attempt_id, begin->call, [this, attempt_id, injected] {
      Change([&](auto& actions) { core_.StreamEnded(attempt_id, injected, actions); });
    });
  }
  v1::StartRequest start = StartRequestOf(*begin, request);
  std::vector<int32_t> expected = ExpectedTokens(start);
  Stream(*begin, std::move(start), request.trace, std::move(expected));
}

std::function<bool(std::function<void()> task)> Legs::ToLoop() {
  return [this](std::function<void()> task) { return loop_.RunOrPostCompletion(std::move(task)); };
}

std::shared_ptr<Relay> Legs::RelayOf(const BeginCall& begin) {
  std::shared_ptr<Relay>& relay = relays_[begin.worker];
  if (relay == nullptr || relay->RetryDue(NowUs())) {
    relay = Relay::Start(channels_.Get(begin.worker, begin.address), relay_tracker_, ToLoop());
  }
  return relay->open() ? relay : nullptr;
}

// `expected`: that a chain tells of the prompt; nullopt: a stream that tells of none.
void Legs::Stream(const BeginCall& begin, LegStream::Request request,
                  const tracing::TraceContext& trace,
                  std::optional<std::vector<int32_t>> expected) {
  const uint64_t attempt_id = begin.attempt_id;
  // Large messages would keep others waiting.
  const bool tells_tokens = expected.has_value() && !expected->empty();
  LegStream::Listener listener;
  listener.on_message = [this, attempt_id](const StreamMessage& message) {
    const absl::Status injected = Failpoint("router.token");
    Change([&](auto& actions) {
      if (injected.ok()) {
        core_.StreamSaid(attempt_id, message, actions);
      } else {
        core_.StreamEnded(attempt_id, injected, actions);
      }
    });
  };
  if (expected.has_value()) {
    listener.on_prompt = [this, attempt_id,
                          expected = *std::move(expected)](v1::StartResponse prompt) {
      callbacks_.on_report(attempt_id, std::move(*prompt.mutable_report()));
      Change([&](auto& actions) {
        core_.PromptTold(attempt_id, TokensOf(prompt), expected, actions);
      });
    };
  }
  listener.on_end = [this, attempt_id, call = begin.call](const absl::Status& status) {
    cancels_.erase({attempt_id, call});
    Change([&](auto& actions) { core_.StreamEnded(attempt_id, status, actions); });
  };
  const std::shared_ptr<Relay> relay = tells_tokens ? nullptr : RelayOf(begin);
  if (relay != nullptr) {
    cancels_[{attempt_id, begin.call}] = [relay, attempt_id] { relay->Cancel(attempt_id); };
    return relay->Begin(attempt_id, std::move(request), trace, std::move(listener));
  }
  const auto stream =
      LegStream::Start(channels_.Get(begin.worker, begin.address), tracker_, std::move(request),
                       CallDeadline(begin.give_up_us), trace, ToLoop(), std::move(listener));
  cancels_[{attempt_id, begin.call}] = [stream] { stream->Cancel(); };
}

v1::StartRequest Legs::StartRequestOf(const BeginCall& begin, const LegRequest& request) const {
  v1::StartRequest start;
  start.set_attempt_id(begin.attempt_id);
  start.mutable_fixed_prompt_token_ids()->Assign(request.prompt_ids.begin(),
                                                 request.prompt_ids.end());
  *start.mutable_sampling() = SamplingOf(request);
  start.set_timeout_ms(begin.timeout_ms);
  start.set_cache_salt(request.cache_salt);
  start.set_priority(request.priority);
  start.set_head_start_us(request.head_start_us);
  start.mutable_prefix_keys()->Assign(request.prefix.begin(), request.prefix.end());
  start.set_router_incarnation(incarnation_);
  return start;
}

void Legs::FlushCaches(const std::vector<std::pair<Role, InstanceRef>>& workers,
                       const std::function<void(absl::StatusOr<int>)>& done) {
  // Counts the calls that have not ended; the last one tells.
  struct Sum {
    Mutex mutex;
    size_t open ABSL_GUARDED_BY(mutex) = 0;
    int pages ABSL_GUARDED_BY(mutex) = 0;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto sum = std::make_shared<Sum>();
  {
    MutexLock lock(&sum->mutex);
    sum->open = workers.size();
  }
  if (workers.empty()) return done(0);
  for (const auto& [role, worker] : workers) {
    const auto call = std::make_shared<Unary<v1::FlushCacheRequest, v1::FlushCacheResponse>>(
        tracker_, channels_.Get(worker, callbacks_.address_of(worker)));
    call->context->set_deadline(std::chrono::system_clock::now() + kFlushTimeout);
    const auto end = [call, sum, done, role = role, id = worker.id](const grpc::Status& status) {
      absl::StatusOr<int> result;
      {
        MutexLock lock(&sum->mutex);
        sum->pages += call->response.pages();
        if (!status.ok()) sum->status = WithLeg(rpc::FromGrpc(status), RoleName(role), id);
        if (--sum->open > 0) return;
        result = sum->status.ok() ? absl::StatusOr<int>(sum->pages) : sum->status;
      }
      done(std::move(result));
    };
    if (role == Role::kDecode) {
      call->worker->decode->async()->FlushCache(&*call->context, &call->request, &call->response,
                                                end);
    } else {
      call->worker->prefill->async()->FlushCache(&*call->context, &call->request, &call->response,
                                                 end);
    }
  }
}

void Legs::StartPrefill(const router::StartPrefill& action, const LegRequest& request) {
  const auto begin = Begin(action, action.stage0);
  if (!begin.has_value()) return;
  const uint64_t attempt_id = action.attempt_id;
  if (const absl::Status injected = Failpoint("router.start"); !injected.ok()) {
    return PostEnd(attempt_id, LegCall::kStart, [this, attempt_id, injected] {
      Change([&](auto& actions) { core_.StartEnded(attempt_id, injected, {}, {}, actions); });
    });
  }
  const auto call = MakeCall<Unary<v1::StartRequest, v1::StartResponse>>(*begin, request.trace);
  call->request = StartRequestOf(*begin, request);
  *call->request.mutable_ticket() = rpc::ToProto(action.ticket);
  call->worker->prefill->async()->Start(
      &*call->context, &call->request, &call->response,
      [this, call, attempt_id](const grpc::Status& status) {
        PostEnd(attempt_id, LegCall::kStart, [this, call, attempt_id, status] {
          callbacks_.on_report(attempt_id, std::move(*call->response.mutable_report()));
          Change([&](auto& actions) {
            core_.StartEnded(attempt_id, rpc::FromGrpc(status), TokensOf(call->response),
                             ExpectedTokens(call->request), actions);
          });
        });
      });
}

}  // namespace baton::router
