// What the data plane's loop does about those that connect to it, and about pulls.
#include "common/base/log.h"
#include "common/transport/pull_wire.h"
#include "common/transport/ucx_data_plane.h"

namespace baton {
namespace {

// Return endpoints are made on the peers' word, so their number is bounded.
constexpr size_t kMaxPeers = 4096;

}  // namespace

void UcxDataPlane::AnswerGreetings() {
  for (const Receiver::Greeting& greeting : receiver_.TakeGreetings()) {
    if (peers_.size() >= kMaxPeers) {
      LOG(kWarning) << "data plane: more than " << kMaxPeers << " peers";
      continue;
    }
    const absl::StatusOr<PeerId> peer =
        ConnectNow(greeting.sealed_address, Peer::Direction::kReturn);
    if (!peer.ok()) {
      LOG(kWarning) << "data plane: return endpoint: " << peer.status().message();
    } else if (greeting.greeter.has_value()) {
      peers_.at(*peer)->Answers(*greeting.greeter);
      OfferPulls(*greeting.greeter, *peer);
    }
  }
}

void UcxDataPlane::AnswerGoodbyes() {
  for (const Goodbye& goodbye : receiver_.TakeGoodbyes()) {
    for (const auto& [id, peer] : peers_) {
      if (!peer->IsReturnTo(goodbye) || peer->closing()) continue;
      CloseReturn(id, absl::CancelledError("data plane: the peer has disconnected"));
    }
  }
}

// Nobody but the loop knows a return endpoint: closing it ends its receives, UCX's and our own.
void UcxDataPlane::CloseReturn(PeerId id, const absl::Status& reason) {
  peers_.at(id)->Close(reason);
  closing_.push_back(id);
  receiver_.puller().RemoveSource(id);
}

void UcxDataPlane::OfferPulls(const Greeter& greeting, PeerId to) {
  if (!options_.pull || greeting.process == 0) return;
  if (!receiver_.puller().AddSource(to, greeting)) return;
  LOG(kInfo) << "data plane: peer " << to << " is on this host, and its payloads are read there";
  peers_.at(to)->SendOwn(EncodePull(kPullReadyKind, PullReady{greeting.peer, to}));
}

// What has come of our offers, a slice of one of the others', and our words on theirs.
bool UcxDataPlane::Pull() {
  for (const PullReady& ready : receiver_.TakeReady()) {
    const auto found = peers_.find(ready.peer);
    if (found != peers_.end()) found->second->PullReady(ready.source);
  }
  for (const PullEnd& end : receiver_.TakeEnds()) {
    const auto found = peers_.find(end.peer);
    if (found != peers_.end()) found->second->PullEnded(end);
  }
  const bool advanced = receiver_.puller().Advance();
  for (const Puller::Answer& answer : receiver_.puller().TakeAnswers()) {
    const auto found = peers_.find(answer.source);
    if (found != peers_.end()) found->second->SendOwn(EncodePull(kPullEndKind, answer.end));
  }
  return advanced;
}

}  // namespace baton
