#include "common/transport/receiver.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/transport/frame.h"
#include "common/transport/peer_address.h"

namespace baton {

// A rendezvous that UCX is writing into its runs.
struct Receiver::Receive {
  Receiver* receiver;
  MessageHandler* handler;  // Null: unregistered since.
  uint64_t receipt;
  UcxBuffer runs;  // UCX reads the list itself until the end.
  size_t payload_bytes;
  Receives::iterator place;
};

Receiver::Receiver(DataPlaneCounters* counters, Gate* gate)
    : counters_(counters),
      gate_(gate),
      puller_([this](const Puller::Pull& pull, const absl::Status& status) {
        if (status.ok()) counters_->bytes_pulled.fetch_add(pull.bytes, std::memory_order_relaxed);
        Complete(pull.handler, pull.receipt, pull.bytes, status);
      }) {}

Receiver::~Receiver() { BATON_CHECK(pending_.empty()) << pending_.size() << " receives"; }

absl::Status Receiver::Install(ucp_worker_h worker) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kActiveMessageId;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = &Receiver::OnMessage;
  params.arg = &ports_.emplace_back(Port{this, worker});
  return UcxStatus(ucp_worker_set_am_recv_handler(worker, &params), "data plane: message handler");
}

absl::Status Receiver::Register(MessageKind kind, MessageHandler* handler) {
  const auto index = static_cast<size_t>(kind);
  if (index >= kMaxMessageKinds || handler == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("data plane: no handler for kind ", index));
  }
  if (handlers_[index] != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("data plane: kind ", index, " has a handler"));
  }
  handlers_[index] = handler;
  return absl::OkStatus();
}

void Receiver::Unregister(MessageKind kind) {
  const auto index = static_cast<size_t>(kind);
  if (index >= kMaxMessageKinds) return;
  const MessageHandler* handler = std::exchange(handlers_[index], nullptr);
  for (const std::unique_ptr<Receive>& receive : pending_) {
    if (receive->handler == handler) receive->handler = nullptr;
  }
  puller_.Unregister(handler);
}

ucs_status_t Receiver::OnMessage(void* port, const void* header, size_t header_bytes, void* data,
                                 size_t payload_bytes, const ucp_am_recv_param_t* param) {
  const auto [receiver, worker] = *static_cast<const Port*>(port);
  std::span message(static_cast<const std::byte*>(header), header_bytes);
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  // A rendezvous's payload is not here yet.
  const std::span payload(static_cast<const std::byte*>(data), is_rendezvous ? 0 : payload_bytes);
  if (!receiver->PassesGate(message, payload, is_rendezvous)) return UCS_OK;
  const std::optional<Frame> frame = ParseFrame(message);
  if (frame.has_value() && !is_rendezvous &&
      receiver->OnOwnMessage(frame->kind, message, payload)) {
    return UCS_OK;
  }
  MessageHandler* handler = nullptr;
  std::optional<Placement> placement = receiver->Admit(&handler, message, payload_bytes);
  // UCS_OK tells UCX that the data may go; a rendezvous then ends at the sender without being read.
  if (!placement.has_value()) return UCS_OK;
  if (is_rendezvous) {
    return receiver->StartReceive(worker, handler, *placement, data, payload_bytes);
  }
  const auto* source = static_cast<const std::byte*>(data);
  for (std::span<std::byte> run : placement->runs) {
    if (run.empty()) continue;
    std::memcpy(run.data(), source, run.size());
    source += run.size();
  }
  receiver->Complete(handler, placement->receipt, payload_bytes, absl::OkStatus());
  return UCS_OK;
}

bool Receiver::PassesGate(std::span<const std::byte>& message, std::span<const std::byte> payload,
                          bool is_rendezvous) {
  if (gate_->open()) return true;
  const std::optional<uint64_t> session = TakePass(message);
  if (!session.has_value()) {
    CountUnproven();
    return false;
  }
  const std::optional<Frame> frame = ParseFrame(message);
  if (frame.has_value() && frame->kind == kGreetingKind && !is_rendezvous) {
    // Taken here whole, since the session counts from now on.
    if (!PassesGreeting(*session, message, payload)) CountUnproven();
    return false;
  }
  if (gate_->Knows(*session)) return true;
  CountUnproven();
  return false;
}

bool Receiver::PassesGreeting(uint64_t session, std::span<const std::byte> message,
                              std::span<const std::byte> sealed_address) {
  std::span<const std::byte> rest;
  const auto greeting_sender = DecodePull<GreetingSender>(message, &rest);
  Proof proof;
  if (!greeting_sender.has_value() || rest.size() != proof.size() ||
      sealed_address.size() > kMaxPeerAddressBytes) {
    return false;
  }
  std::memcpy(proof.data(), rest.data(), proof.size());
  if (!gate_->Admit(session, *greeting_sender, sealed_address, proof)) return false;
  greetings_.push_back(
      {std::string(reinterpret_cast<const char*>(sealed_address.data()), sealed_address.size()),
       greeting_sender, session});
  return true;
}

void Receiver::CountUnproven() {
  const uint64_t count = 1 + counters_->unproven_messages.fetch_add(1);
  // 1, 2, 4, 8 ...: a flood of them is no flood of lines.
  if ((count & (count - 1)) == 0) {
    LOG(kWarning) << "data plane: " << count
                  << " messages were dropped: their senders have not proved this worker's secret";
  }
}

template <typename T>
bool Receiver::Keep(std::span<const std::byte> message) {
  const std::optional<T> told = DecodePull<T>(message);
  if (told.has_value()) std::get<std::vector<T>>(said_).push_back(*told);
  return told.has_value();
}

bool Receiver::OnOwnMessage(uint16_t kind, std::span<const std::byte> message,
                            std::span<const std::byte> payload) {
  if (kind == kGreetingKind) {
    OnGreeting(message, payload);
    return true;
  }
  if (!payload.empty()) return false;
  if (kind == kPullOfferKind) return OnOffer(message);
  if (kind == kGoodbyeKind) return Keep<Goodbye>(message);
  if (kind == kPingKind) return Keep<Ping>(message);
  if (kind == kPongKind) return Keep<Pong>(message);
  if (kind == kPullReadyKind) return Keep<PullReady>(message);
  return kind == kPullEndKind && Keep<PullEnd>(message);
}

bool Receiver::OnOffer(std::span<const std::byte> message) {
  std::span<const std::byte> offered;
  const auto offer = DecodePull<PullOffer>(message, &offered);
  // There is no way back to a sender that is given up already; it finds out by itself that nothing
  // comes of its offer (endpoint_life.h).
  if (!offer.has_value() || !puller_.HasSource(offer->source)) return false;
  if (!Failpoint("transport.offer_lost").ok()) return true;
  if (!puller_.Readable(*offer)) {
    puller_.Decline(*offer, PullOutcome::kUnreadable);
    return true;
  }
  MessageHandler* handler = nullptr;
  std::optional<Placement> placement = Admit(&handler, offered, offer->bytes);
  if (!placement.has_value()) {
    puller_.Decline(*offer, PullOutcome::kTaken);
    return true;
  }
  puller_.Add({*offer, offer->bytes, std::move(placement->runs), handler, placement->receipt});
  return true;
}

void Receiver::OnGreeting(std::span<const std::byte> message,
                          std::span<const std::byte> sealed_address) {
  if (sealed_address.size() > kMaxPeerAddressBytes) {
    counters_->messages_malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  greetings_.push_back(
      {std::string(reinterpret_cast<const char*>(sealed_address.data()), sealed_address.size()),
       DecodePull<GreetingSender>(message), std::nullopt});
}

std::optional<Placement> Receiver::Admit(MessageHandler** handler,
                                         std::span<const std::byte> message, size_t payload_bytes) {
  const std::optional<Frame> frame = ParseFrame(message);
  if (!frame.has_value() || frame->kind >= kMaxMessageKinds || handlers_[frame->kind] == nullptr ||
      message.size() > sizeof(Frame) + kMaxMessageHeaderBytes) {
    counters_->messages_malformed.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  *handler = handlers_[frame->kind];
  std::optional<Placement> placement =
      (*handler)->OnHeader(message.subspan(sizeof(Frame)), payload_bytes);
  if (placement.has_value()) {
    size_t placed_bytes = 0;
    for (std::span<std::byte> run : placement->runs) placed_bytes += run.size();
    if (placed_bytes == payload_bytes) return placement;
  }
  counters_->messages_refused.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

ucs_status_t Receiver::StartReceive(ucp_worker_h worker, MessageHandler* handler,
                                    const Placement& placement, void* descriptor,
                                    size_t payload_bytes) {
  auto owned = std::make_unique<Receive>();
  Receive* receive = owned.get();
  receive->receiver = this;
  receive->handler = handler;
  receive->receipt = placement.receipt;
  receive->payload_bytes = payload_bytes;
  for (std::span<std::byte> run : placement.runs) receive->runs.Append(run.data(), run.size());
  receive->place = pending_.insert(pending_.end(), std::move(owned));
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  params.cb.recv_am = &Receiver::OnReceived;
  params.user_data = receive;
  params.datatype = receive->runs.datatype();
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker, descriptor, receive->runs.data(),
                                                  receive->runs.count(), &params);
  // A pointer is a request of which OnReceived will tell.
  if (!UCS_PTR_IS_PTR(request)) Finish(receive, UCS_PTR_STATUS(request));
  // UCX owns the descriptor from the call above on.
  return UCS_INPROGRESS;
}

void Receiver::OnReceived(void* request, ucs_status_t status, size_t /*bytes*/, void* user_data) {
  ucp_request_free(request);
  auto* receive = static_cast<Receive*>(user_data);
  receive->receiver->Finish(receive, status);
}

void Receiver::Finish(Receive* receive, ucs_status_t status) {
  std::unique_ptr<Receive> owned = std::move(*receive->place);
  pending_.erase(receive->place);
  Complete(owned->handler, owned->receipt, owned->payload_bytes,
           UcxStatus(status, "data plane: receive"));
}

void Receiver::Complete(MessageHandler* handler, uint64_t receipt, size_t payload_bytes,
                        const absl::Status& status) {
  if (status.ok()) {
    counters_->messages_received.fetch_add(1, std::memory_order_relaxed);
    counters_->bytes_received.fetch_add(payload_bytes, std::memory_order_relaxed);
  } else {
    counters_->receive_errors.fetch_add(1, std::memory_order_relaxed);
  }
  if (handler != nullptr) handler->OnPlaced(receipt, status);
}

void Receiver::Abandon() {
  puller_.Abandon(absl::CancelledError("data plane: shut down during a pull"));
  Receives receives = std::exchange(pending_, {});
  for (const std::unique_ptr<Receive>& receive : receives) {
    Complete(receive->handler, receive->receipt, receive->payload_bytes,
             absl::CancelledError("data plane: shut down during a receive"));
  }
}

}  // namespace baton
