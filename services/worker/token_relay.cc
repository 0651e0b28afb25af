#include "services/worker/token_relay.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

constexpr size_t kLargeBytes = 4096;

}  // namespace

// ---- One stream ----

class RelayedStream final : public TokenStream {
 public:
  RelayedStream(std::shared_ptr<TokenRelay> relay, uint64_t attempt_id, StreamTrace trace)
      : TokenStream(std::move(trace)), relay_(std::move(relay)), attempt_id_(attempt_id) {}

  [[nodiscard]] bool Push(v1::DecodeGenerateResponse response) override {
    return ended_ || relay_->Push(attempt_id_, std::move(response));
  }
  void Break() override { End(absl::CancelledError("the router reads too slowly")); }
  // By the router, or by the relay's end.
  void Cancel() {
    ended_ = true;
    TellCancelled();
  }

 private:
  void End(const absl::Status& status) override {
    if (!ended_.exchange(true)) relay_->End(attempt_id_, status);
  }

  const std::shared_ptr<TokenRelay> relay_;
  const uint64_t attempt_id_;
  std::atomic<bool> ended_{false};
};

// ---- One relay ----

TokenRelay::TokenRelay(TokenRelays* owner) : owner_(owner) {}

void TokenRelay::Begin(const absl::Status& status) {
  if (!status.ok()) return End(status, /*drop=*/true);
  {
    MutexLock lock(&mutex_);
    queue_.emplace_front();  // The first message, which is empty.
    due_ = true;
    Advance();
  }
  StartRead(&request_);
}

std::shared_ptr<TokenStream> TokenRelay::Open(uint64_t attempt_id, StreamTrace trace) {
  auto stream = std::make_shared<RelayedStream>(shared_from_this(), attempt_id, std::move(trace));
  MutexLock lock(&mutex_);
  if (ending_ || !streams_.emplace(attempt_id, stream).second) return nullptr;
  return stream;
}

std::shared_ptr<RelayedStream> TokenRelay::Find(uint64_t attempt_id) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(attempt_id);
  return found == streams_.end() ? nullptr : found->second;
}

v1::RelayedEvent& TokenRelay::Add(uint64_t attempt_id, bool large) {
  if (last_is_large_ || large || queue_.size() <= (writing_ ? 1 : 0)) queue_.emplace_back();
  last_is_large_ = large;
  ++queued_events_;
  due_ = false;
  v1::RelayedEvent& relayed = *queue_.back().add_events();
  relayed.set_attempt_id(attempt_id);
  return relayed;
}

bool TokenRelay::Push(uint64_t attempt_id, v1::DecodeGenerateResponse event) {
  MutexLock lock(&mutex_);
  if (ending_ || queued_events_ >= kMaxQueuedEvents) return false;
  // What is told of a long prompt is a message by itself.
  const bool large = event.has_prompt() && event.ByteSizeLong() > kLargeBytes;
  *Add(attempt_id, large).mutable_event() = std::move(event);
  return true;
}

void TokenRelay::End(uint64_t attempt_id, const absl::Status& status) {
  std::shared_ptr<RelayedStream> ended;  // Goes after the lock.
  MutexLock lock(&mutex_);
  const auto found = streams_.find(attempt_id);
  if (found == streams_.end()) return;
  ended = std::move(found->second);
  streams_.erase(found);
  if (status.ok()) return;  // Finished has told it.
  *Add(attempt_id, /*large=*/false).mutable_failure() = rpc::ToMessage(status);
  // Perhaps not by the loop, which flushes. What it still fills may go in two messages.
  due_ = true;
  Advance();
}

void TokenRelay::Flush() {
  MutexLock lock(&mutex_);
  due_ = true;
  Advance();
}

// gRPC's operations may be started under the lock: their callbacks come on threads of their own.
void TokenRelay::Advance() {
  if (writing_ || ended_) return;
  if (!queue_.empty()) {
    if (!due_ && queue_.size() == 1) return;  // The loop is still filling it.
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (ending_) {
    ended_ = true;
    Finish(status_);
  }
}

void TokenRelay::OnReadDone(bool ok) {
  if (!ok) return;  // The router asks for nothing more. If it is gone, OnCancel comes.
  for (const v1::RelayedCall& call : request_.calls()) {
    if (!call.has_cancel()) {
      owner_->begin_(call, *this);
    } else if (const std::shared_ptr<RelayedStream> stream = Find(call.attempt_id())) {
      stream->Cancel();
      End(call.attempt_id(), absl::OkStatus());
    }
  }
  StartRead(&request_);
}

void TokenRelay::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queued_events_ -= static_cast<size_t>(queue_.front().events_size());
  queue_.pop_front();
  if (!ok) queue_.clear();  // The router is gone; OnCancel ends the stream.
  Advance();
}

void TokenRelay::Close() { End(absl::OkStatus(), /*drop=*/false); }

void TokenRelay::End(const absl::Status& status, bool drop) {
  std::map<uint64_t, std::shared_ptr<RelayedStream>> streams;
  {
    MutexLock lock(&mutex_);
    if (drop) queue_.resize(writing_ ? 1 : 0);
    if (std::exchange(ending_, true)) return;
    streams.swap(streams_);
    status_ = rpc::ToGrpc(status);
    due_ = true;
    Advance();
  }
  for (const auto& [attempt_id, stream] : streams) stream->Cancel();
}

void TokenRelay::OnCancel() { End(absl::CancelledError("the relay was cancelled"), /*drop=*/true); }

void TokenRelay::OnDone() {
  const std::shared_ptr<TokenRelay> last = std::move(self_);
  owner_->Remove(last);
}

// ---- All of them ----

grpc::ServerBidiReactor<v1::RelayRequest, v1::RelayResponse>* TokenRelays::Relay(
    grpc::CallbackServerContext* /*context*/) {
  std::shared_ptr<TokenRelay> relay(new TokenRelay(this));
  relay->self_ = relay;
  const absl::Status status = Add(relay);
  relay->Begin(status);
  return relay.get();
}

absl::Status TokenRelays::Add(const std::shared_ptr<TokenRelay>& relay) {
  MutexLock lock(&mutex_);
  if (closed_) return absl::UnavailableError("the worker stops");
  if (relays_.size() >= kMaxRelays) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxRelays, " relays are open already"));
  }
  relays_.insert(relay);
  return absl::OkStatus();
}

void TokenRelays::Remove(const std::shared_ptr<TokenRelay>& relay) {
  MutexLock lock(&mutex_);
  relays_.erase(relay);
}

void TokenRelays::Flush() {
  MutexLock lock(&mutex_);
  for (const std::shared_ptr<TokenRelay>& relay : relays_) relay->Flush();
}

void TokenRelays::Close() {
  std::set<std::shared_ptr<TokenRelay>> relays;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    relays = relays_;
  }
  for (const std::shared_ptr<TokenRelay>& relay : relays) relay->Close();
}

}  // namespace baton::worker
