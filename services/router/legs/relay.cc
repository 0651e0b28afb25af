#include "services/router/legs/relay.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/grpc_status.h"

namespace baton::router {
namespace {

constexpr int64_t kRetryUs = 1'000'000;
// A message that has so much takes no more calls: workers bound what they read at once.
constexpr size_t kFullBytes = size_t{64} << 10;

}  // namespace

std::shared_ptr<Relay> Relay::Start(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker,
                                    Post post) {
  auto relay = std::make_shared<Relay>(std::move(worker), tracker, std::move(post));
  relay->self_ = relay;
  relay->worker_->relays->async()->Relay(&*relay->context_, relay.get());
  // Reads and writes are started from the loop, too, outside of reactions: the holds keep the call
  // from ending meanwhile. The read that fails gives one back, the end of writing the other.
  relay->AddMultipleHolds(2);
  relay->StartRead(&relay->message_);
  relay->StartCall();
  return relay;
}

Relay::Relay(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, Post post)
    : context_(tracker), worker_(std::move(worker)), post_(std::move(post)) {}

// ---- On gRPC's threads ----

Relay::Event Relay::EventOf(v1::RelayedEvent& event) {
  if (event.has_failure()) return {event.attempt_id(), {}, rpc::FromMessage(event.failure())};
  return {event.attempt_id(), HeardOf(*event.mutable_event()), absl::OkStatus()};
}

void Relay::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
      if (!writing_) RemoveHold();
    }
    return RemoveHold();
  }
  Events events;
  events.reserve(static_cast<size_t>(message_.events_size()));
  for (v1::RelayedEvent& event : *message_.mutable_events()) events.push_back(EventOf(event));
  const auto added = unheard_.Add(std::move(events));
  if (!added.paused) StartRead(&message_);  // First: the task may run here.
  if (added.first && !post_([relay = self_] { relay->HearUnheard(); })) {
    context_->TryCancel();
    unheard_.Clear();
  }
}

// After a write that fails, the read fails as well.
void Relay::OnWriteDone(bool /*ok*/) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (closed_) return RemoveHold();
  Advance();
}

void Relay::OnDone(const grpc::Status& status) {
  const bool posted =
      post_([relay = self_, status = rpc::FromGrpc(status)] { relay->HearEnd(status); });
  if (!posted) {
    LOG(kDebug) << "a relay ended after the router's loop";
  }
  self_.reset();
}

// gRPC's operations may be started under the lock: their callbacks come on threads of their own.
void Relay::Advance() {
  if (writing_ || queue_.empty()) return;
  writing_ = true;
  StartWrite(&queue_.front());
}

// ---- On the loop ----

bool Relay::RetryDue(int64_t now_us) const {
  return end_.has_value() && !absl::IsUnimplemented(*end_) && now_us - ended_us_ >= kRetryUs;
}

// Calls that come while a message is being written share the next one.
void Relay::Send(v1::RelayedCall call) {
  const size_t bytes = call.ByteSizeLong();
  MutexLock lock(&mutex_);
  if (closed_) return;  // OnDone follows, and ends all streams.
  const bool fits = queue_.size() > (writing_ ? 1 : 0) && last_bytes_ + bytes <= kFullBytes;
  if (!fits) {
    queue_.emplace_back();
    last_bytes_ = 0;
  }
  last_bytes_ += bytes;
  *queue_.back().add_calls() = std::move(call);
  Advance();
}

void Relay::Begin(uint64_t attempt_id, LegStream::Request request,
                  const tracing::TraceContext& trace, LegStream::Listener listener) {
  v1::RelayedCall call;
  call.set_attempt_id(attempt_id);
  if (auto* start = std::get_if<v1::StartRequest>(&request)) {
    *call.mutable_start() = std::move(*start);
  } else {
    *call.mutable_generate() = std::move(std::get<v1::DecodeGenerateRequest>(request));
  }
  if (trace.valid() && trace.span != 0) {
    call.set_traceparent(tracing::Traceparent(trace));
    call.set_tracestate(trace.state);
  }
  streams_[attempt_id] = std::make_shared<LegStream::Listener>(std::move(listener));
  Send(std::move(call));
}

void Relay::Cancel(uint64_t attempt_id) {
  if (streams_.count(attempt_id) == 0) return;
  v1::RelayedCall call;
  call.set_attempt_id(attempt_id);
  call.mutable_cancel();
  Send(std::move(call));
  End(attempt_id, absl::CancelledError("cancelled"));
}

void Relay::End(uint64_t attempt_id, const absl::Status& status) {
  const auto found = streams_.find(attempt_id);
  if (found == streams_.end()) return;
  const auto listener = std::move(found->second);
  streams_.erase(found);
  listener->on_end(status);
}

void Relay::Hear(Event& event) {
  const auto found = streams_.find(event.attempt_id);
  if (found == streams_.end()) return;  // Its stream has ended.
  if (!event.failure.ok()) return End(event.attempt_id, event.failure);
  const auto listener = found->second;  // Which may cancel itself.
  if (Tell(*listener, event.heard)) End(event.attempt_id, absl::OkStatus());
}

void Relay::HearUnheard() {
  const bool paused = unheard_.Take(hearing_);
  open_ = !end_.has_value();
  for (Events& events : hearing_) {
    for (Event& event : events) Hear(event);
  }
  hearing_.clear();
  if (paused) StartRead(&message_);
}

void Relay::HearEnd(const absl::Status& status) {
  open_ = false;
  end_ = status;
  ended_us_ = NowUs();
  if (!streams_.empty()) {
    LOG(kInfo) << "the relay of " << worker_->instance.id << " broke under " << streams_.size()
               << " streams: " << status.ToString();
  }
  const auto lost =
      absl::UnavailableError(absl::StrCat("the relay that carries it broke: ", status.ToString()));
  for (const auto& [attempt_id, listener] : std::exchange(streams_, {})) listener->on_end(lost);
}

}  // namespace baton::router
