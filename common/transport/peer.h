// One connected peer: its endpoint, its send window, and the queue behind the window. Data thread
// only.
#ifndef COMMON_TRANSPORT_PEER_H_
#define COMMON_TRANSPORT_PEER_H_

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/transport/data_plane.h"
#include "common/transport/endpoint_life.h"
#include "common/transport/gate.h"
#include "common/transport/offer_ledger.h"
#include "common/transport/peer_address.h"
#include "common/transport/pull_wire.h"
#include "common/transport/ucx_support.h"

namespace baton {

class Peer {
 public:
  // What the peer and the loop share; outlives the peer.
  struct Shared {
    const DataPlaneOptions& options;
    DataPlaneCounters* counters;
    OfferLedger* ledger;
    Gate* gate;
    std::vector<PeerId> failed;  // UCX reported them dead; the loop closes them.
    std::vector<PeerId> ready;   // Their window has room; the loop calls Pump.
  };

  // kOutbound: a user's Connect. kReturn: our own endpoint to a peer that connected to us. UCX
  // makes such an endpoint by itself, but does not report its failure and asserts that nothing is
  // under way on it when the worker ends; ours takes its place.
  enum class Direction { kOutbound, kReturn };

  Peer(PeerId id, Direction direction, Shared* shared);
  // Finished() or Abandon() must come first.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Creates the endpoint. An outbound one greets the peer with `own_address` (sealed, without a
  // secret: it travels in the clear), so that it opens its return endpoint; sends wait in the queue
  // until the greeting is out, which takes one round trip. Before, UCX may reorder messages, and
  // UCX 1.13 aborts a receiver whose sender dies in the middle of connecting, so that span is kept
  // short.
  absl::Status Open(ucp_worker_h worker, const PeerAddress& address,
                    const std::string& own_address);

  void Send(Outgoing message);  // Queues it; Pump or MarkReady comes next.
  // A message of the data plane's own, complete with its frame and without a payload.
  void SendOwn(std::vector<std::byte> message);

  // The peer can read this process's memory: payloads are offered to it from now on.
  void PullReady(uint64_t source);
  // The peer's outcome for an offer.
  void PullEnded(const PullEnd& end);

  // The greeting that a return endpoint answers.
  void Answers(const GreetingSender& greeting_sender, std::optional<uint64_t> session) {
    greeting_sender_ = greeting_sender;
    session_ = session;
  }
  // `words`: a Goodbye or a Ping.
  template <typename Words>
  bool IsReturnTo(const Words& words) const {
    return greeting_sender_.has_value() && greeting_sender_->cookie == words.cookie &&
           greeting_sender_->peer == words.peer;
  }

  // Answers an opener's ping.
  void Pinged(const Ping& ping, int64_t now_us);
  // The answer to this endpoint's own question.
  void Answered(const Pong& pong, int64_t now_us) { life_.Answered(pong.sequence, now_us); }
  // Sends a ping when one is due; UNAVAILABLE once the endpoint does not work any more
  // (endpoint_life.h). Not within callbacks of UCX.
  absl::Status LookAfter(int64_t now_us);

  // Hands queued messages to UCX as far as the window allows. Not within callbacks of UCX: a send
  // there could overtake messages that UCX is just about to flush.
  void Pump();
  void MarkReady();  // The loop is to call Pump, before it sleeps.

  // Ends what is queued with `reason` at once, and what is in flight with it when UCX lets go of
  // the memory. An outbound peer is told goodbye, so that it closes its return endpoint. Later
  // calls are ignored. A peer that UCX has not given up is left kSettleUs to finish what is under
  // way: UCX 1.13 asserts in the one process or the other if an endpoint goes in the middle of
  // connecting (README, "Known limits"). Not within callbacks of UCX.
  void Close(const absl::Status& reason);
  bool closing() const { return !reason_.ok(); }
  // Whether that time is over is looked at here, until Finished. Not within callbacks of UCX.
  void AdvanceClose(int64_t now_us);

  // The endpoint is closed and no send is in flight: the peer may be deleted.
  bool Finished() const { return endpoint_ == nullptr && !HasInFlight() && !settling_; }

  static constexpr int64_t kSettleUs = 200'000;

  // Ends what is still in flight. Only after the worker is destroyed, when UCX calls back no more.
  void Abandon();

  // Why UCX gave the peer up; OK if it didn't.
  const absl::Status& failure() const { return failure_; }
  Direction direction() const { return direction_; }
  bool HasInFlight() const { return greeting_ || !in_flight_.empty(); }
  std::string Lanes() const { return LanesOf(endpoint_); }

 private:
  struct Operation;
  using Operations = std::list<std::unique_ptr<Operation>>;

  static void OnError(void* self, ucp_ep_h endpoint, ucs_status_t status);
  void Greet(const std::string& secret, const std::string& own_address);
  void SayGoodbye();
  void Settle();
  static void OnGreeted(void* request, ucs_status_t status, void* self);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnSettled(void* request, ucs_status_t status, void* self);
  static void OnClosed(void* request, ucs_status_t status, void* self);

  std::unique_ptr<Operation> Own(std::vector<std::byte> message);
  bool FitsWindow(const Operation& operation) const;
  bool Offer(Operation& operation);
  void SettleOffer(Operation* operation);
  void WithdrawOffers(const absl::Status& why);
  bool CanSend() const { return !greeting_ && failure_.ok(); }
  // Hands the front of `queue` to UCX.
  void StartFront(std::deque<std::unique_ptr<Operation>>& queue);
  void Start(std::unique_ptr<Operation> operation);
  void Sent(Operation* operation, ucs_status_t status);
  void Finish(Operation* operation, const absl::Status& status);
  void Complete(Operation& operation, const absl::Status& status);

  const PeerId id_;
  const Direction direction_;
  Shared* const shared_;
  ucp_ep_h endpoint_ = nullptr;
  EndpointLife life_;       // For an outbound endpoint,
  ReturnLife return_life_;  // or for a return endpoint.
  absl::Status failure_;
  absl::Status reason_;  // Not OK from Close on.
  Operations in_flight_;
  size_t data_in_flight_ = 0;  // Operations; the rest of in_flight_ is control.
  size_t data_in_flight_bytes_ = 0;
  // Control is what has no payload. It goes first and is outside the data window.
  std::deque<std::unique_ptr<Operation>> control_;
  std::deque<std::unique_ptr<Operation>> data_;
  std::unordered_map<uint64_t, Operation*> offers_;  // In the ledger, by id.
  std::optional<GreetingSender> greeting_sender_;    // For a return endpoint.
  std::optional<uint64_t> session_;                  // If the peer's plane has a secret.
  uint64_t pull_source_ = 0;                         // The peer's id for us; 0: it reads nothing.
  std::vector<std::byte> greeting_message_;          // UCX reads it until the greeting is out.
  bool greeting_ = false;                            // The greeting is on its way.
  uint64_t greeting_send_ = 0;                       // What life_ calls it.
  bool ready_ = false;                               // In shared_->ready.
  bool settling_ = false;                            // A flush before the close is under way.
  bool said_goodbye_ = false;
  bool closed_ = false;  // UCX has been told to close the endpoint.
  int64_t settled_by_us_ = 0;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_PEER_H_
