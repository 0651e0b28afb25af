#include "services/router/legs/relay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/grpc_status.h"

namespace baton::router {
namespace {

constexpr int64_t kRetryUs = 1'000'000;

}  // namespace

std::shared_ptr<Relay> Relay::Start(std::shared_ptr<WorkerStubs> worker, Role role,
                                    rpc::CallTracker& tracker, uint64_t relay_id, Post post) {
  auto relay = std::make_shared<Relay>(std::move(worker), tracker, relay_id, std::move(post));
  relay->self_ = relay;
  grpc::ClientContext& context = *relay->context_;
  if (role == Role::kDecode) {
    relay->worker_->decode->async()->Relay(&context, &relay->request_, relay.get());
  } else {
    relay->worker_->prefill->async()->Relay(&context, &relay->request_, relay.get());
  }
  relay->AddHold();  // As LegStream's: the read that fails gives it back.
  relay->StartRead(&relay->message_);
  relay->StartCall();
  return relay;
}

Relay::Relay(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, uint64_t relay_id,
             Post post)
    : context_(tracker), worker_(std::move(worker)), post_(std::move(post)) {
  request_.set_relay_id(relay_id);
}

// ---- On gRPC's threads ----

void Relay::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();
  Events events;
  events.reserve(static_cast<size_t>(message_.events_size()));
  for (v1::RelayedEvent& event : *message_.mutable_events()) {
    events.push_back({event.attempt_id(), HeardOf(*event.mutable_event())});
  }
  const auto added = unheard_.Add(std::move(events));
  if (added.first && !post_([relay = self_] { relay->HearUnheard(); })) {
    context_->TryCancel();
    unheard_.Clear();
  }
  if (!added.paused) StartRead(&message_);
}

void Relay::OnDone(const grpc::Status& status) {
  const bool posted =
      post_([relay = self_, status = rpc::FromGrpc(status)] { relay->HearEnd(status); });
  if (!posted) {
    LOG(kDebug) << "a relay ended after the router's loop";
  }
  self_.reset();
}

// ---- On the loop ----

bool Relay::RetryDue(int64_t now_us) const {
  return end_.has_value() && !absl::IsUnimplemented(*end_) && now_us - ended_us_ >= kRetryUs;
}

void Relay::Add(uint64_t attempt_id, std::shared_ptr<LegStream> stream) {
  streams_[attempt_id] = std::move(stream);
}

void Relay::HearUnheard() {
  const bool paused = unheard_.Take(hearing_);
  open_ = !end_.has_value();
  for (Events& events : hearing_) {
    for (Event& event : events) {
      const auto found = streams_.find(event.attempt_id);
      if (found == streams_.end()) continue;                    // Its stream has ended.
      const std::shared_ptr<LegStream> stream = found->second;  // Which may remove itself.
      stream->Hear(event.heard);
    }
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
      absl::UnavailableError(absl::StrCat("the relay of its tokens broke: ", status.ToString()));
  for (const auto& [attempt_id, stream] : std::exchange(streams_, {})) stream->RelayBroke(lost);
}

}  // namespace baton::router
