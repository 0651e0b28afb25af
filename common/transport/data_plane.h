// The data plane: tensors between processes as UCX active messages. A message is a small header,
// which the receiver checks, and a payload, which the receiver places where it wants; a peer can
// never write to memory of its own choice, so what comes late or wrong is refused (rejected
// alternative: ucp_put, docs in README.md).
//
// One thread, "baton-data", owns the UCX workers and all endpoints. Every callback of this
// header runs on it and must be short; every method may be called from any thread, also from such
// a callback, unless it says otherwise.
#ifndef COMMON_TRANSPORT_DATA_PLANE_H_
#define COMMON_TRANSPORT_DATA_PLANE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// A connected peer; local to this data plane, never reused, never 0.
using PeerId = uint64_t;

// What a message is for. The value travels in the frame, so it is part of the wire protocol:
// append, never renumber.
enum class MessageKind : uint16_t {
  kKvPages = 0,      // prefill -> decode: KV bytes of one page run
  kKvControl = 1,    // prefill <-> decode: commit, abort, drained, lease renewal
  kActivations = 2,  // stage -> next stage
};
inline constexpr size_t kMaxMessageKinds = 16;

// Limit of Outgoing::header.
inline constexpr size_t kMaxMessageHeaderBytes = 512;

// Where an accepted payload goes.
struct Placement {
  // Destination runs in payload order. Their sizes must sum to the payload's, else the message is
  // refused. The memory must stay valid and unused until OnPlaced(receipt).
  std::vector<std::span<std::byte>> runs;
  // Chosen by the handler, given back in OnPlaced.
  uint64_t receipt = 0;
};

// Receives messages of one or more kinds; data thread only.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;

  // A message has been announced; no byte of it has been placed. `header` comes from the peer as
  // it is (unaligned, unchecked: memcpy and validate it) and is gone after the call;
  // `payload_bytes` is what the sender announced. nullopt refuses: the payload is dropped and
  // counted, the sender is not told. Messages of one peer may overtake each other: control (below)
  // goes ahead of data, and data above the eager limit of UCX (about 8 KiB) arrives as it comes.
  // Control messages keep the order of Send among themselves, small data messages too.
  virtual std::optional<Placement> OnHeader(std::span<const std::byte> header,
                                            size_t payload_bytes) = 0;

  // Ends an accepted message, exactly once, possibly from within the UCX callback that called
  // OnHeader. OK: all bytes are in the runs. Error: some may be; nothing writes to them any more.
  // If the sender vanishes halfway, UCX may notice late or only at Shutdown: bound the wait with a
  // lease, but keep the memory (quarantine) until this call.
  virtual void OnPlaced(uint64_t receipt, const absl::Status& status) = 0;
};

// A message to send. One without a payload is control: it has a queue of its own, waits for no data
// but what UCX has been given already (DataPlaneOptions::window_bytes), and so may overtake data
// that was sent before it. What must be known of the data when a control message arrives (a
// commit's) is for the receiver to count, not for the order.
//
// A payload is best one run of at most a few MiB: UCX 1.13 moves a run without a copy where the
// transport can, but always copies a list, and whatever follows a message waits for all of it.
struct Outgoing {
  MessageKind kind = MessageKind::kKvControl;
  std::vector<std::byte> header;                 // at most kMaxMessageHeaderBytes
  std::vector<std::span<const std::byte>> runs;  // gather list; valid and unchanged until on_sent
  // Called exactly once, may be null. OK: the runs may be reused; it does not say that the receiver
  // accepted or even got the message (acknowledge in the protocol above). Errors:
  //   INVALID_ARGUMENT    header too long, kind out of range
  //   NOT_FOUND           no such peer, or it was disconnected before
  //   RESOURCE_EXHAUSTED  the peer's send queue is full: hand over less and wait for on_sent, which
  //                       is the event that there is room
  //   CANCELLED           Disconnect or Shutdown came first
  //   UNAVAILABLE         the peer failed, or nothing came to its end for too long
  // After an error the peer may have got the message, a part of it, or nothing. Runs on the data
  // thread, with an error perhaps before Send returns. If the data plane is shut down or its
  // mailbox is full, that is on the calling thread (so hold no lock that on_sent takes).
  std::function<void(const absl::Status&)> on_sent;
};

struct DataPlaneOptions {
  // Per peer: data messages beyond the window wait in the queue. A message larger than window_bytes
  // goes out alone. The window is what control waits for at most, behind it in the connection: 8
  // MiB take 67 ms at 1 Gbit/s; the socket's own buffer (net.ipv4.tcp_wmem, 4 MiB) may add half of
  // that.
  size_t window_operations = 64;
  size_t window_bytes = 8 << 20;
  size_t queue_operations = 4096;
  // Per peer: control messages, which wait only while UCX itself takes no more.
  size_t control_window_operations = 256;
  size_t control_queue_operations = 4096;
  // Closures and messages that wait for the data thread.
  size_t mailbox_limit = 1 << 16;
  // An endpoint over which nothing is answered, or a send does not end, for this long, and for what
  // 10 MB/s take to carry what is ahead, has failed (endpoint_life.h). 0: it is never given up.
  int64_t silence_us = 3'000'000;
  // Between processes of one host where the system lets one read the other's memory, the receiver
  // reads payloads of 64 KiB and more there: one copy. Both ends must want it. Finds out by itself,
  // for each connection, and sends by UCX where it can't be.
  bool pull = false;
  // Not empty: only processes that have this plane's address(), which then contains the secret, can
  // send to it (gate.h). Empty: any process that reaches it can. MakePlaneSecret() makes one.
  std::string secret;
};

// An unguessable secret.
std::string MakePlaneSecret();

// Totals since creation; any thread.
struct DataPlaneCounters {
  std::atomic<uint64_t> messages_sent{0};       // on_sent(OK)
  std::atomic<uint64_t> bytes_sent{0};          // their payload
  std::atomic<uint64_t> send_errors{0};         // on_sent(error)
  std::atomic<uint64_t> messages_received{0};   // OnPlaced(OK)
  std::atomic<uint64_t> bytes_received{0};      // their payload
  std::atomic<uint64_t> bytes_pulled{0};        // of them, read out of the senders' memory
  std::atomic<uint64_t> receive_errors{0};      // OnPlaced(error)
  std::atomic<uint64_t> messages_refused{0};    // by the handler, or runs don't sum to the payload
  std::atomic<uint64_t> messages_malformed{0};  // bad magic or version, kind without a handler
  std::atomic<uint64_t> unproven_messages{0};   // dropped unread, for want of a proof
  std::atomic<uint64_t> peer_failures{0};       // endpoints that were found dead
};

class DataPlane {
 public:
  // Starts the thread and opens UCX with active messages only. Puts Baton's UCX defaults into the
  // environment where the user has not set them, so call it before other threads read it.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Create(const DataPlaneOptions& options);

  virtual ~DataPlane() = default;  // Shuts down.

  // What a peer needs to Connect to this data plane: opaque bytes, to be exchanged inside gRPC. Has
  // the secret, if there is one: for peers alone.
  virtual const std::string& address() const = 0;

  // Gives the messages of `kind` to `handler` (not owned; it must live until Shutdown returns), in
  // force on return. Register before giving away the address. ALREADY_EXISTS for a second handler.
  virtual absl::Status Register(MessageKind kind, MessageHandler* handler) = 0;

  // Takes the kind's handler away, for one whose owner could not start: on return it is called no
  // more, not even for the ends of messages that it has accepted.
  virtual void Unregister(MessageKind kind) = 0;

  // Opens an endpoint to the data plane whose address() is `address`. INVALID_ARGUMENT if that is
  // not an address, UNAVAILABLE if no transport reaches it. Doesn't wait for the peer: a dead one
  // shows at the first send. Both sides should connect to each other, so that each learns of the
  // other's death. Waits for the data thread; a restarted peer has a new address and a new PeerId.
  virtual absl::StatusOr<PeerId> Connect(std::string_view address) = 0;

  // Ends the connection without waiting, on both sides; unfinished sends get CANCELLED. Unknown
  // peers are ignored.
  virtual void Disconnect(PeerId peer) = 0;

  // Sends, queues, or fails through message.on_sent. Messages of one thread to one peer are handed
  // to UCX in order.
  virtual void Send(PeerId peer, Outgoing message) = 0;

  // Runs `task` on the data thread, in order with this thread's sends. False, and `task` is
  // dropped, after Shutdown or when the mailbox is full.
  [[nodiscard]] virtual bool Post(std::function<void()> task) = 0;

  // The same for work whose amount the caller bounds and whose loss would keep a resource: it finds
  // room in a full mailbox too. False only after Shutdown.
  [[nodiscard]] virtual bool PostReserved(std::function<void()> task) = 0;

  // Calls `on_tick(NowUs())` about every `period_us` (at least 1 ms; late ticks are not made up).
  // Replaces the timer set before; a null function stops it. In force on return.
  virtual void SetTimer(int64_t period_us, std::function<void(int64_t now_us)> on_tick) = 0;

  // Tells when a peer is found dead, by UCX or by silence (DataPlaneOptions::silence_us), once per
  // peer and after the on_sent of its queued messages. The PeerId is of no more use. In force on
  // return.
  virtual void SetPeerErrorHandler(std::function<void(PeerId, const absl::Status&)> on_error) = 0;

  // The transports that UCX chose for a peer ("posix/memory am, tcp/eth0 ..."), for people to read;
  // empty if unknown. Waits for the data thread.
  virtual std::string Lanes(PeerId peer) = 0;

  virtual const DataPlaneCounters& counters() const = 0;

  // Ends everything: every on_sent and OnPlaced that is due is called, then the thread ends.
  // Idempotent; any thread but the data thread.
  virtual void Shutdown() = 0;
};

// Whether a NIC may hold on to memory that messages have been placed in, since UCX keeps it
// registered for the next one: anything but TCP, as the environment says it (UCX_TLS,
// UCX_NET_DEVICES).
bool MayRegisterMemory();

}  // namespace baton

#endif  // COMMON_TRANSPORT_DATA_PLANE_H_
