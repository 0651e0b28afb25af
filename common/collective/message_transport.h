// Messages between the ranks of one group, in order and whole: what a ThreadedCommunicator needs of
// a network library. Gloo's is gloo/, in the torch plugin.
//
// The buffers are the caller's and stay in its hands for the transport's whole life: a library that
// has been given memory to receive into may write there until its connection is gone, and so is
// never given a tensor's. That costs a copy on either side, and makes an abort immediate.
#ifndef COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_
#define COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace baton {

class MessageTransport {
 public:
  // Closes first. Nothing touches the caller's buffers any more afterwards.
  virtual ~MessageTransport() = default;

  // Room for one message of `peer`'s, at most as long; filled in the order of the calls. Does not
  // block. Like Send, from one thread at a time for each peer.
  virtual absl::Status PostReceive(int peer, std::span<std::byte> room) = 0;
  // Waits until the oldest room that no call has waited for is filled. From one thread for each
  // peer. UNAVAILABLE when the peer is gone, CANCELLED after Close; then no more comes from it.
  virtual absl::Status AwaitReceive(int peer) = 0;
  // Begins to send; `message` must stay until AwaitSent. Does not block.
  virtual absl::Status Send(int peer, std::span<const std::byte> message) = 0;
  // Waits until the oldest message to `peer` that no call has waited for is out of its memory.
  virtual absl::Status AwaitSent(int peer) = 0;
  // Ends every wait, now and from now on. Any thread.
  virtual void Close() = 0;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_
