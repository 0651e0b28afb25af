#include "common/transport/peer.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/transport/frame.h"

namespace baton {
namespace {

// Below, a message and its answer take longer than UCX's copies.
constexpr size_t kMinPullBytes = 64 << 10;

}  // namespace

// A message on its way. Owns frame and header: UCX 1.13 reads them until the send completes
// (UCP_AM_SEND_FLAG_COPY_HEADER came with 1.14).
struct Peer::Operation {
  Peer* peer;
  std::vector<std::byte> header;
  std::vector<std::byte> passed;  // The header behind its pass, while UCX reads it.
  UcxBuffer payload;
  size_t payload_bytes = 0;
  std::function<void(const absl::Status&)> on_sent;
  Operations::iterator place;  // In in_flight_, once started.

  // For a payload that the peer reads out of our memory. `header` is then the offer's; the send's
  // end and the peer's outcome come in any order.
  std::optional<OfferLedger::Offer> offer = {};
  bool announced = false;                    // The send has ended.
  std::optional<absl::Status> outcome = {};  // The peer's PullEnd, or why we ended it.
  bool unreadable = false;                   // The outcome: to be sent the other way.

  bool is_own = false;  // The data plane's, and no user's message.
  bool is_ping = false;
  uint64_t send = 0;  // What life_ calls it, from Start on.
};

Peer::Peer(PeerId id, Direction direction, Shared* shared)
    : id_(id),
      direction_(direction),
      shared_(shared),
      life_({.silence_us = shared->options.silence_us}, NowUs()),
      return_life_({.silence_us = shared->options.silence_us}, NowUs()) {}

Peer::~Peer() {
  BATON_CHECK(in_flight_.empty() && control_.empty() && data_.empty()) << "peer " << id_;
}

absl::Status Peer::Open(ucp_worker_h worker, const PeerAddress& address,
                        const std::string& own_address) {
  const std::string& ucx_address = address.ucx;
  // UCX wants its own alignment of the address.
  std::vector<uint64_t> aligned((ucx_address.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  std::memcpy(aligned.data(), ucx_address.data(), ucx_address.size());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(aligned.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Peer::OnError;
  params.err_handler.arg = this;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_ep_create(worker, &params, &endpoint_), "data plane: connect"));
  if (direction_ == Direction::kOutbound) Greet(address.secret, own_address);
  return absl::OkStatus();
}

void Peer::Greet(const std::string& secret, const std::string& own_address) {
  const uint64_t process = shared_->options.pull ? static_cast<uint64_t>(getpid()) : 0;
  const GreetingSender greeting_sender{process, shared_->ledger->address(),
                                       shared_->ledger->cookie(), id_};
  if (secret.empty()) {
    greeting_message_ = EncodePull(kGreetingKind, greeting_sender);
  } else {
    session_ = NewSession();
    shared_->gate->Begin(*session_);
    const Proof proof = ProofOf(secret, *session_, greeting_sender,
                                std::as_bytes(std::span<const char>(own_address)));
    greeting_message_ = WithPass(*session_, EncodePull(kGreetingKind, greeting_sender, proof));
  }
  // UCX reads both until the greeting is out; own_address lives as long as the data plane.
  ucp_request_param_t send{};
  send.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  send.cb.send = &Peer::OnGreeted;
  send.user_data = this;
  // Naming a reply endpoint makes UCX finish connecting first.
  send.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kActiveMessageId, greeting_message_.data(),
                      greeting_message_.size(), own_address.data(), own_address.size(), &send);
  greeting_ = UCS_PTR_IS_PTR(request);
  if (greeting_) greeting_send_ = life_.SendBegan(greeting_message_.size(), NowUs());
  // An error here is followed by OnError.
}

void Peer::OnGreeted(void* request, ucs_status_t /*status*/, void* self) {
  ucp_request_free(request);
  Peer* peer = static_cast<Peer*>(self);
  peer->greeting_ = false;
  peer->life_.SendEnded(peer->greeting_send_);
  peer->MarkReady();
}

absl::Status Peer::LookAfter(int64_t now_us) {
  if (closing() || !failure_.ok()) return absl::OkStatus();
  if (direction_ == Direction::kReturn) return return_life_.Check(now_us);
  if (const auto sequence = life_.TakePing(now_us); sequence.has_value() && CanSend()) {
    auto operation = Own(EncodePull(kPingKind, Ping{shared_->ledger->cookie(), id_, *sequence}));
    operation->is_ping = true;
    control_.push_front(std::move(operation));
    Pump();
  }
  return life_.Check(now_us);
}

void Peer::Pinged(const Ping& ping, int64_t now_us) {
  return_life_.Heard(now_us);
  SendOwn(EncodePull(kPongKind, Pong{ping.peer, ping.sequence}));
}

// Without it the peer's end would stay open: UCX's keepalive is off over TCP (README, "Known
// limits"), and over shared memory nothing else reports our end.
void Peer::SayGoodbye() {
  said_goodbye_ = true;
  Start(Own(EncodePull(kGoodbyeKind, Goodbye{shared_->ledger->cookie(), id_})));
}

void Peer::OnError(void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  // UCX is in the middle of its own work here: closing the endpoint waits for the loop.
  Peer* peer = static_cast<Peer*>(self);
  if (!peer->failure_.ok() || peer->closing()) return;
  peer->failure_ = absl::UnavailableError(
      absl::StrCat("data plane: peer ", peer->id_, " failed: ", ucs_status_string(status)));
  peer->shared_->failed.push_back(peer->id_);
}

void Peer::Send(Outgoing message) {
  auto operation = std::make_unique<Operation>();
  operation->peer = this;
  operation->on_sent = std::move(message.on_sent);
  for (std::span<const std::byte> run : message.runs) {
    // UCX's lists are of mutable memory for both directions; a send only reads it.
    operation->payload.Append(const_cast<std::byte*>(run.data()), run.size());
    operation->payload_bytes += run.size();
  }
  const Frame frame{.kind = static_cast<uint16_t>(message.kind)};
  if (message.header.size() > kMaxMessageHeaderBytes || frame.kind >= kMaxMessageKinds) {
    Complete(*operation, absl::InvalidArgumentError(absl::StrCat(
                             "data plane: message of kind ", frame.kind, " with a header of ",
                             message.header.size(), " bytes; limits are ", kMaxMessageKinds - 1,
                             " and ", kMaxMessageHeaderBytes)));
    return;
  }
  if (closing() || !failure_.ok()) {
    Complete(*operation, closing() ? reason_ : failure_);
    return;
  }
  const bool is_control = operation->payload_bytes == 0;
  std::deque<std::unique_ptr<Operation>>& queue = is_control ? control_ : data_;
  const size_t limit =
      is_control ? shared_->options.control_queue_operations : shared_->options.queue_operations;
  if (queue.size() >= limit) {
    Complete(*operation, absl::ResourceExhaustedError(absl::StrCat(
                             "data plane: ", queue.size(), is_control ? " control" : " data",
                             " messages wait for peer ", id_)));
    return;
  }
  operation->header = Joined({BytesOf(frame), message.header});
  queue.push_back(std::move(operation));
}

std::unique_ptr<Peer::Operation> Peer::Own(std::vector<std::byte> message) {
  auto operation = std::make_unique<Operation>();
  operation->peer = this;
  operation->is_own = true;
  operation->header = std::move(message);
  return operation;
}

void Peer::SendOwn(std::vector<std::byte> message) {
  if (closing() || !failure_.ok()) return;
  control_.push_back(Own(std::move(message)));
  Pump();
}

bool Peer::FitsWindow(const Operation& operation) const {
  if (data_in_flight_ == 0) return true;
  return data_in_flight_ < shared_->options.window_operations &&
         data_in_flight_bytes_ + operation.payload_bytes <= shared_->options.window_bytes;
}

void Peer::MarkReady() {
  if (ready_ || closing()) return;
  ready_ = true;
  shared_->ready.push_back(id_);
}

void Peer::Pump() {
  ready_ = false;
  while (CanSend() && !control_.empty() &&
         in_flight_.size() - data_in_flight_ < shared_->options.control_window_operations) {
    StartFront(control_);
  }
  while (CanSend() && !data_.empty() && FitsWindow(*data_.front())) StartFront(data_);
}

void Peer::StartFront(std::deque<std::unique_ptr<Operation>>& queue) {
  std::unique_ptr<Operation> operation = std::move(queue.front());
  queue.pop_front();
  Start(std::move(operation));
}

// Puts the payload into the ledger instead of into the message, if the peer can read it there.
bool Peer::Offer(Operation& operation) {
  if (pull_source_ == 0 || operation.unreadable || operation.payload_bytes < kMinPullBytes ||
      !operation.payload.contiguous()) {
    return false;
  }
  operation.offer = shared_->ledger->Open();
  if (!operation.offer.has_value()) return false;
  const PullOffer offer{pull_source_, operation.offer->id, operation.offer->slot,
                        reinterpret_cast<uint64_t>(operation.payload.data()),
                        operation.payload_bytes};
  operation.header = EncodePull(kPullOfferKind, offer, operation.header);
  offers_[operation.offer->id] = &operation;
  return true;
}

void Peer::Start(std::unique_ptr<Operation> owned) {
  Operation* operation = owned.get();
  if (operation->payload_bytes > 0) ++data_in_flight_;
  data_in_flight_bytes_ += operation->payload_bytes;
  operation->place = in_flight_.insert(in_flight_.end(), std::move(owned));
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = &Peer::OnSent;
  params.user_data = operation;
  UcxBuffer none;
  UcxBuffer& payload = Offer(*operation) ? none : operation->payload;
  params.datatype = payload.datatype();
  // A message that names a reply endpoint is dropped where a rendezvous would be: at a peer whose
  // part of the connection is closed.
  params.flags = operation->is_ping ? UCP_AM_SEND_FLAG_REPLY : 0;
  if (session_.has_value()) operation->passed = WithPass(*session_, operation->header);
  const std::vector<std::byte>& header =
      session_.has_value() ? operation->passed : operation->header;
  // What is offered does not go over the link.
  const size_t payload_bytes = operation->offer.has_value() ? 0 : operation->payload_bytes;
  operation->send = life_.SendBegan(header.size() + payload_bytes, NowUs());
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kActiveMessageId, header.data(), header.size(), payload.data(),
                      payload.count(), &params);
  // A pointer is a request of which OnSent will tell.
  if (!UCS_PTR_IS_PTR(request)) Sent(operation, UCS_PTR_STATUS(request));
}

void Peer::OnSent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  Operation* operation = static_cast<Operation*>(user_data);
  operation->peer->Sent(operation, status);
}

void Peer::Sent(Operation* operation, ucs_status_t ucx_status) {
  const absl::Status status =
      UcxStatus(ucx_status, absl::StrCat("data plane: send to peer ", id_).c_str());
  if (!operation->offer.has_value()) return Finish(operation, status);
  operation->announced = true;
  if (!status.ok() && !operation->outcome.has_value()) operation->outcome = status;
  if (operation->outcome.has_value()) SettleOffer(operation);
}

void Peer::PullReady(uint64_t source) {
  if (shared_->options.pull) pull_source_ = source;
}

void Peer::PullEnded(const PullEnd& end) {
  const auto found = offers_.find(end.id);
  if (found == offers_.end()) return;  // We have ended it ourselves.
  Operation* operation = found->second;
  operation->unreadable = end.outcome == PullOutcome::kUnreadable;
  operation->outcome =
      end.outcome == PullOutcome::kFailed
          ? absl::UnavailableError(absl::StrCat("data plane: peer ", id_, " could not read"))
          : absl::OkStatus();
  SettleOffer(operation);
}

// An offer has an outcome: it is withdrawn, and ends as soon as UCX has let go of the message.
void Peer::SettleOffer(Operation* operation) {
  if (offers_.erase(operation->offer->id) > 0) shared_->ledger->Close(*operation->offer);
  if (!operation->announced) return;
  if (!operation->unreadable || closing() || !failure_.ok()) {
    return Finish(operation, *operation->outcome);
  }
  LOG(kWarning) << "data plane: peer " << id_
                << " can't read a payload where it lies; from now on it is sent";
  pull_source_ = 0;
  std::unique_ptr<Operation> owned = std::move(*operation->place);
  in_flight_.erase(operation->place);
  life_.SendEnded(owned->send);
  --data_in_flight_;
  data_in_flight_bytes_ -= owned->payload_bytes;
  owned->offer.reset();
  owned->outcome.reset();
  owned->header.erase(owned->header.begin(), owned->header.begin() + kPullOfferBytes);
  data_.push_front(std::move(owned));
  MarkReady();
}

void Peer::WithdrawOffers(const absl::Status& why) {
  const std::unordered_map<uint64_t, Operation*> offers = offers_;
  for (const auto& [id, operation] : offers) {
    operation->outcome = why;
    SettleOffer(operation);
  }
}

void Peer::Finish(Operation* operation, const absl::Status& status) {
  std::unique_ptr<Operation> owned = std::move(*operation->place);
  in_flight_.erase(operation->place);
  life_.SendEnded(owned->send);
  if (owned->payload_bytes > 0) --data_in_flight_;
  data_in_flight_bytes_ -= owned->payload_bytes;
  if (status.ok()) {
    Complete(*owned, absl::OkStatus());
  } else if (closing()) {
    Complete(*owned, reason_);
  } else if (!failure_.ok()) {
    Complete(*owned, failure_);
  } else {
    Complete(*owned, absl::UnavailableError(status.message()));
  }
  if (!control_.empty() || !data_.empty()) MarkReady();
}

void Peer::Complete(Operation& operation, const absl::Status& status) {
  if (operation.is_own) return;
  if (status.ok()) {
    shared_->counters->messages_sent.fetch_add(1, std::memory_order_relaxed);
    shared_->counters->bytes_sent.fetch_add(operation.payload_bytes, std::memory_order_relaxed);
  } else {
    shared_->counters->send_errors.fetch_add(1, std::memory_order_relaxed);
  }
  if (operation.on_sent) operation.on_sent(status);
}

void Peer::Close(const absl::Status& reason) {
  if (closing()) return;
  BATON_CHECK(!reason.ok());
  reason_ = reason;
  for (auto* queue : {&control_, &data_}) {
    const std::deque<std::unique_ptr<Operation>> waiting = std::exchange(*queue, {});
    for (const std::unique_ptr<Operation>& operation : waiting) Complete(*operation, reason_);
  }
  WithdrawOffers(reason_);
  if (endpoint_ == nullptr) return;
  const int64_t now_us = NowUs();
  settled_by_us_ = now_us + kSettleUs;
  if (failure_.ok()) Settle();
  AdvanceClose(now_us);
}

void Peer::Settle() {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Peer::OnSettled;
  params.user_data = this;
  settling_ = UCS_PTR_IS_PTR(ucp_ep_flush_nbx(endpoint_, &params));
}

void Peer::OnSettled(void* request, ucs_status_t /*status*/, void* self) {
  ucp_request_free(request);
  static_cast<Peer*>(self)->settling_ = false;
}

void Peer::AdvanceClose(int64_t now_us) {
  if (endpoint_ == nullptr || closed_ || (settling_ && now_us < settled_by_us_)) return;
  // Not before: a goodbye could overtake the greeting. One that stands still reads it later.
  if (failure_.ok() && direction_ == Direction::kOutbound && !greeting_ && !said_goodbye_) {
    SayGoodbye();
    if (!settling_) Settle();
    if (settling_ && now_us < settled_by_us_) return;
  }
  closed_ = true;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // Not a close that flushes: with a peer that doesn't answer it would never end.
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &Peer::OnClosed;
  params.user_data = this;
  if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint_, &params))) endpoint_ = nullptr;
}

void Peer::OnClosed(void* request, ucs_status_t /*status*/, void* self) {
  ucp_request_free(request);
  static_cast<Peer*>(self)->endpoint_ = nullptr;
}

void Peer::Abandon() {
  endpoint_ = nullptr;
  greeting_ = false;
  settling_ = false;
  Operations operations = std::exchange(in_flight_, {});
  for (const std::unique_ptr<Operation>& operation : operations) Complete(*operation, reason_);
}

}  // namespace baton
