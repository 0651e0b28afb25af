// What the data plane's loop does about those that connect to it, and about pulls.
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/stop_signal.h"
#include "common/transport/pull_wire.h"
#include "common/transport/ucx_data_plane.h"

namespace baton {
namespace {

// Peers' greetings open return endpoints, so their number is bounded.
constexpr size_t kMaxPeers = 4096;
// How often they are looked after: twice in the time between two pings.
constexpr int64_t kLookUs = 250'000;

}  // namespace

void UcxDataPlane::AnswerGreetings() {
  for (const Receiver::Greeting& greeting : receiver_.TakeGreetings()) {
    if (peers_.size() >= kMaxPeers) {
      LOG(kWarning) << "data plane: more than " << kMaxPeers << " peers";
      continue;
    }
    if (!Failpoint("transport.greeting_lost").ok()) continue;
    const absl::StatusOr<PeerId> peer =
        ConnectNow(greeting.sealed_address, Peer::Direction::kReturn);
    if (!peer.ok()) {
      LOG(kWarning) << "data plane: return endpoint: " << peer.status().message();
    } else if (greeting.greeting_sender.has_value()) {
      peers_.at(*peer)->Answers(*greeting.greeting_sender, greeting.session);
      OfferPulls(*greeting.greeting_sender, *peer);
    }
  }
}

void UcxDataPlane::AnswerGoodbyes() {
  for (const Goodbye& goodbye : receiver_.Take<Goodbye>()) {
    for (const auto& [id, peer] : peers_) {
      if (!peer->IsReturnTo(goodbye) || peer->closing()) continue;
      CloseReturn(id, absl::CancelledError("data plane: the peer has disconnected"));
    }
  }
}

void UcxDataPlane::AnswerPings() {
  const int64_t now_us = NowUs();
  for (const Ping& ping : receiver_.Take<Ping>()) {
    for (const auto& [id, peer] : peers_) {
      if (peer->IsReturnTo(ping) && !peer->closing()) peer->Pinged(ping, now_us);
    }
  }
  for (const Pong& pong : receiver_.Take<Pong>()) {
    if (Peer* const peer = Find(pong.peer)) peer->Answered(pong, now_us);
  }
}

// Checks all endpoints, and gives up those that don't work.
void UcxDataPlane::LookAfterPeers() {
  const int64_t now_us = NowUs();
  if (now_us < next_look_us_) return;
  next_look_us_ = now_us + kLookUs;
  std::vector<std::pair<PeerId, absl::Status>> silent;
  for (const auto& [id, peer] : peers_) {
    if (absl::Status status = peer->LookAfter(now_us); !status.ok())
      silent.emplace_back(id, status);
  }
  for (const auto& [id, status] : silent) {
    Peer& peer = *peers_.at(id);
    const auto failure = absl::UnavailableError(
        absl::StrCat("data plane: peer ", id, " is given up: ", status.message()));
    if (peer.direction() == Peer::Direction::kReturn) {
      LOG(kInfo) << failure.message();
      CloseReturn(id, failure);
    } else {
      Fail(peer, id, failure);
    }
  }
}

void UcxDataPlane::Fail(Peer& peer, PeerId id, const absl::Status& failure) {
  peer.Close(failure);
  closing_.push_back(id);
  counters_.peer_failures.fetch_add(1, std::memory_order_relaxed);
  if (!StopRequested()) LOG(kWarning) << failure.message();
  // A copy: the handler may replace itself.
  if (const auto on_error = on_peer_error_) on_error(id, failure);
}

// Only the loop knows a return endpoint: closing it ends its receives, UCX's and our own.
void UcxDataPlane::CloseReturn(PeerId id, const absl::Status& reason) {
  peers_.at(id)->Close(reason);
  closing_.push_back(id);
  receiver_.puller().RemoveSource(id);
}

void UcxDataPlane::OfferPulls(const GreetingSender& greeting, PeerId to) {
  if (!options_.pull || greeting.process == 0) return;
  if (!receiver_.puller().AddSource(to, greeting)) return;
  LOG(kInfo) << "data plane: peer " << to << " is on this host, and its payloads are read there";
  peers_.at(to)->SendOwn(EncodePull(kPullReadyKind, PullReady{greeting.peer, to}));
}

// Handles the outcomes of our offers, pulls a slice of a peer's, and sends outcomes for theirs.
bool UcxDataPlane::Pull() {
  for (const PullReady& ready : receiver_.Take<PullReady>()) {
    if (Peer* const peer = Find(ready.peer)) peer->PullReady(ready.source);
  }
  for (const PullEnd& end : receiver_.Take<PullEnd>()) {
    if (Peer* const peer = Find(end.peer)) peer->PullEnded(end);
  }
  const bool advanced = receiver_.puller().Advance();
  for (const Puller::Answer& answer : receiver_.puller().TakeAnswers()) {
    if (Peer* const peer = Find(answer.source)) peer->SendOwn(EncodePull(kPullEndKind, answer.end));
  }
  return advanced;
}

}  // namespace baton
