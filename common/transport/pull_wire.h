// The data planes' own messages: the greeting's sender, goodbyes, pings, and what a receiver needs
// to read payloads out of the sender's memory (README, "Pulls"). Native byte order, like the frame
// before them: UCX connects only hosts of the same order.
#ifndef COMMON_TRANSPORT_PULL_WIRE_H_
#define COMMON_TRANSPORT_PULL_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "common/transport/frame.h"

namespace baton {

// Sent by UcxDataPlane itself, as the greeting is, and only after a greeting that had a
// GreetingSender.
inline constexpr uint16_t kPullOfferKind = 0xfffe;
inline constexpr uint16_t kPullReadyKind = 0xfffd;
inline constexpr uint16_t kPullEndKind = 0xfffc;
inline constexpr uint16_t kGoodbyeKind = 0xfffb;
inline constexpr uint16_t kPingKind = 0xfffa;
inline constexpr uint16_t kPongKind = 0xfff9;

// Follows a greeting's frame: the sender, and where readers find its process's offer ledger.
struct GreetingSender {
  uint64_t process = 0;  // In its pid namespace, which may be another one. 0: offers nothing.
  uint64_t ledger = 0;   // Address of OfferLedger's words.
  uint64_t cookie = 0;   // The ledger's first word; another value: another process.
  uint64_t peer = 0;     // The greeting_sender's id for the greeted peer.
};

// The last message of a connection that its opener closes on purpose: close your end as well.
struct Goodbye {
  uint64_t cookie = 0;  // GreetingSender::cookie.
  uint64_t peer = 0;    // GreetingSender::peer.
};

// Does this connection still work? From its opener, with the same fields as its Goodbye.
struct Ping {
  uint64_t cookie = 0;  // GreetingSender::cookie.
  uint64_t peer = 0;    // GreetingSender::peer.
  uint64_t sequence = 0;
};

// The answer, over the return endpoint.
struct Pong {
  uint64_t peer = 0;  // GreetingSender::peer.
  uint64_t sequence = 0;
};

// "I can read your memory, offer me payloads."
struct PullReady {
  uint64_t peer = 0;    // GreetingSender::peer.
  uint64_t source = 0;  // The reader's id for the greeting_sender.
};

// A message whose payload stays where it is; its own frame and header follow.
struct PullOffer {
  uint64_t source = 0;   // PullReady::source.
  uint64_t id = 0;       // Never used again, never 0.
  uint64_t slot = 0;     // In the ledger: holds `id` as long as the payload is there.
  uint64_t address = 0;  // The payload's.
  uint64_t bytes = 0;
};

// What an offer puts before the message's own frame and header.
inline constexpr size_t kPullOfferBytes = sizeof(Frame) + sizeof(PullOffer);

enum class PullOutcome : uint64_t {
  kTaken = 0,       // Read, or refused by its header: the payload is not needed any more.
  kFailed = 1,      // The message was accepted, and a part of it could not be read.
  kUnreadable = 2,  // Unreadable: send it another way. No handler has seen its header.
};

struct PullEnd {
  uint64_t peer = 0;  // GreetingSender::peer.
  uint64_t id = 0;    // The offer's.
  PullOutcome outcome = PullOutcome::kTaken;
};

// The frame of `kind`, `value`, and `rest`.
template <typename T>
std::vector<std::byte> EncodePull(uint16_t kind, const T& value,
                                  std::span<const std::byte> rest = {}) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  const Frame frame{.kind = kind};
  return Joined({BytesOf(frame), BytesOf(value), rest});
}

// What follows the frame of `message`, and behind it `rest`; nullopt if that is too short, or too
// long where no rest is wanted.
template <typename T>
std::optional<T> DecodePull(std::span<const std::byte> message,
                            std::span<const std::byte>* rest = nullptr) {
  constexpr size_t kBytes = sizeof(Frame) + sizeof(T);
  if (message.size() < kBytes || (rest == nullptr && message.size() > kBytes)) return std::nullopt;
  T value;
  std::memcpy(&value, message.data() + sizeof(Frame), sizeof(value));
  if (rest != nullptr) *rest = message.subspan(kBytes);
  return value;
}

}  // namespace baton

#endif  // COMMON_TRANSPORT_PULL_WIRE_H_
