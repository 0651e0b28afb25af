#include "services/worker/token_relay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

constexpr size_t kLargeBytes = 4096;

}  // namespace

// ---- One relay ----

TokenRelay::TokenRelay(TokenRelays* owner, uint64_t relay_id) : owner_(owner), relay_id_(relay_id) {
  MutexLock lock(&mutex_);
  queue_.emplace_back();  // The first message, which is empty.
}

bool TokenRelay::Push(uint64_t attempt_id, v1::DecodeGenerateResponse event) {
  MutexLock lock(&mutex_);
  if (ending_ || queued_events_ >= kMaxQueuedEvents) return false;
  // What is told of a long prompt is a message by itself.
  const bool large = event.has_prompt() && event.ByteSizeLong() > kLargeBytes;
  if (last_is_large_ || large || queue_.size() <= (writing_ ? 1 : 0)) queue_.emplace_back();
  last_is_large_ = large;
  v1::RelayedEvent& relayed = *queue_.back().add_events();
  relayed.set_attempt_id(attempt_id);
  *relayed.mutable_event() = std::move(event);
  ++queued_events_;
  due_ = false;
  return true;
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
  MutexLock lock(&mutex_);
  if (drop) queue_.resize(writing_ ? 1 : 0);
  if (std::exchange(ending_, true)) return;
  status_ = rpc::ToGrpc(status);
  due_ = true;
  Advance();
}

void TokenRelay::OnCancel() { End(absl::CancelledError("the relay was cancelled"), /*drop=*/true); }

void TokenRelay::OnDone() {
  const std::shared_ptr<TokenRelay> last = std::move(self_);
  owner_->Remove(relay_id_, this);
}

// ---- All of them ----

grpc::ServerWriteReactor<v1::RelayResponse>* TokenRelays::Open(const v1::RelayRequest& request) {
  std::shared_ptr<TokenRelay> relay(new TokenRelay(this, request.relay_id()));
  relay->self_ = relay;
  if (absl::Status status = Add(relay, request.relay_id()); !status.ok()) {
    relay->End(status, /*drop=*/true);
  } else {
    relay->Flush();
  }
  return relay.get();
}

absl::Status TokenRelays::Add(const std::shared_ptr<TokenRelay>& relay, uint64_t relay_id) {
  if (relay_id == 0) return InvalidField("relay_id", "must not be 0");
  MutexLock lock(&mutex_);
  if (closed_) return absl::UnavailableError("the worker stops");
  if (relays_.count(relay_id) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("relay ", relay_id, " is open already"));
  }
  if (relays_.size() >= kMaxRelays) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxRelays, " relays are open already"));
  }
  relays_[relay_id] = relay;
  return absl::OkStatus();
}

void TokenRelays::Remove(uint64_t relay_id, const TokenRelay* relay) {
  MutexLock lock(&mutex_);
  const auto found = relays_.find(relay_id);
  if (found != relays_.end() && found->second.get() == relay) relays_.erase(found);
}

std::shared_ptr<TokenRelay> TokenRelays::Find(uint64_t relay_id) {
  MutexLock lock(&mutex_);
  const auto found = relays_.find(relay_id);
  return found == relays_.end() ? nullptr : found->second;
}

void TokenRelays::Flush() {
  MutexLock lock(&mutex_);
  for (const auto& [relay_id, relay] : relays_) relay->Flush();
}

void TokenRelays::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (const auto& [relay_id, relay] : relays_) relay->Close();
}

}  // namespace baton::worker
