// The receiving side: takes active messages from UCX, asks the kind's handler where the payload
// goes, and puts it there. Data thread only.
#ifndef COMMON_TRANSPORT_RECEIVER_H_
#define COMMON_TRANSPORT_RECEIVER_H_

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/transport/data_plane.h"
#include "common/transport/gate.h"
#include "common/transport/puller.h"
#include "common/transport/ucx_support.h"

namespace baton {

class Receiver {
 public:
  // Both outlive this.
  Receiver(DataPlaneCounters* counters, Gate* gate);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // Takes the messages of `worker` as well.
  absl::Status Install(ucp_worker_h worker);
  absl::Status Register(MessageKind kind, MessageHandler* handler);
  void Unregister(MessageKind kind);

  struct Greeting {
    std::string sealed_address;
    std::optional<GreetingSender> greeting_sender;  // None of an older one.
    std::optional<uint64_t> session;                // If the plane has a secret.
  };
  // From peers that have greeted since the last call.
  std::vector<Greeting> TakeGreetings() { return std::exchange(greetings_, {}); }
  // What peers have said since the last call: a Goodbye, a Ping, the Pong to one of ours, and of
  // our offers PullReady and PullEnd.
  template <typename T>
  std::vector<T> Take() {
    return std::exchange(std::get<std::vector<T>>(said_), {});
  }

  Puller& puller() { return puller_; }
  bool HasPending() const { return !pending_.empty() || puller_.HasPending(); }

  // Ends what is still under way. Only after the worker is destroyed, when nothing writes any more.
  void Abandon();

 private:
  struct Receive;
  // Where a message comes in.
  struct Port {
    Receiver* receiver;
    ucp_worker_h worker;
  };
  using Receives = std::list<std::unique_ptr<Receive>>;

  static ucs_status_t OnMessage(void* port, const void* header, size_t header_bytes, void* data,
                                size_t payload_bytes, const ucp_am_recv_param_t* param);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* receive);

  // Whether the message was one of the data plane's own.
  bool OnOwnMessage(uint16_t kind, std::span<const std::byte> message,
                    std::span<const std::byte> payload);
  // Keeps what a peer says until the loop takes it; false if it is malformed.
  template <typename T>
  bool Keep(std::span<const std::byte> message);
  void OnGreeting(std::span<const std::byte> message, std::span<const std::byte> sealed_address);
  // Whether the message may be read; takes its pass off.
  bool PassesGate(std::span<const std::byte>& message, std::span<const std::byte> payload,
                  bool is_rendezvous);
  bool PassesGreeting(uint64_t session, std::span<const std::byte> message,
                      std::span<const std::byte> sealed_address);
  void CountUnproven();
  bool OnOffer(std::span<const std::byte> message);

  // The handler's answer, if its runs fit; counts what is dropped.
  std::optional<Placement> Admit(MessageHandler** handler, std::span<const std::byte> message,
                                 size_t payload_bytes);
  ucs_status_t StartReceive(ucp_worker_h worker, MessageHandler* handler,
                            const Placement& placement, void* descriptor, size_t payload_bytes);
  void Finish(Receive* receive, ucs_status_t status);
  void Complete(MessageHandler* handler, uint64_t receipt, size_t payload_bytes,
                const absl::Status& status);

  DataPlaneCounters* const counters_;
  Gate* const gate_;
  std::list<Port> ports_;  // UCX keeps pointers to them.
  std::array<MessageHandler*, kMaxMessageKinds> handlers_{};
  Receives pending_;
  Puller puller_;
  std::vector<Greeting> greetings_;
  std::tuple<std::vector<Goodbye>, std::vector<Ping>, std::vector<Pong>, std::vector<PullReady>,
             std::vector<PullEnd>>
      said_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_RECEIVER_H_
