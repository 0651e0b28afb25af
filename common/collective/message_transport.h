// Ordered, complete messages between the ranks of one group: what a ThreadedCommunicator needs of a
// network library. Gloo's implementation is in common/collective/gloo.
//
// The caller owns the buffers during the transport's whole life. A library may write to memory that
// it was given to receive into until its connection is closed, so it is never given a tensor's
// memory. That costs a copy on either side, and makes an abort immediate.
#ifndef COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_
#define COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace baton {

class MessageTransport {
 public:
  // Closes first. Afterwards nothing accesses the caller's buffers.
  virtual ~MessageTransport() = default;

  // Adds a buffer for one message from `peer`, which is at most as long; buffers are filled in the
  // order of the calls. Does not block. Like Send, called by one thread at a time for each peer.
  virtual absl::Status PostReceive(int peer, std::span<std::byte> room) = 0;
  // Waits until the oldest buffer that no call has waited for is filled. Called by one thread for
  // each peer. UNAVAILABLE if the peer is gone, CANCELLED after Close; no more messages come then.
  virtual absl::Status AwaitReceive(int peer) = 0;
  // Starts to send; `message` must stay valid until AwaitSent. Does not block.
  virtual absl::Status Send(int peer, std::span<const std::byte> message) = 0;
  // Waits until the oldest message to `peer` that no call has waited for has left its buffer.
  virtual absl::Status AwaitSent(int peer) = 0;
  // Ends every wait, now and later. Any thread.
  virtual void Close() = 0;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_MESSAGE_TRANSPORT_H_
