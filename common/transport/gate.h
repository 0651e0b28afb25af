// Who may send to a data plane that has a secret. A process that a router has told the plane's
// address has the secret with it, and proves so in its greeting. An unguessable session number then
// precedes every message of the connection, either way; a message without one is dropped unread.
// Rejected: to go by UCX's endpoints, for the sender itself states which one it is.
//
// This keeps out other processes that can reach the port. It hides nothing from those who can read
// the wire (docs/security.md).
#ifndef COMMON_TRANSPORT_GATE_H_
#define COMMON_TRANSPORT_GATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "common/transport/pull_wire.h"

namespace baton {

inline constexpr uint32_t kPassMagic = 0x53544142;  // "BATS"

// Before the frame of every message to a plane with a secret.
struct Pass {
  uint32_t magic = kPassMagic;
  uint32_t version = 1;
  uint64_t session = 0;
};
static_assert(sizeof(Pass) == 16, "the pass travels as its bytes");

// Follows the GreetingSender in a greeting: HMAC-SHA256 of session, GreetingSender and the greeting
// plane's address, keyed with the greeted plane's secret.
using Proof = std::array<std::byte, 32>;

Proof ProofOf(std::string_view secret, uint64_t session, const GreetingSender& greeting_sender,
              std::span<const std::byte> address);

// Never 0.
uint64_t NewSession();

// The session, taken off the front of `message`; nullopt if there is no pass.
std::optional<uint64_t> TakePass(std::span<const std::byte>& message);
std::vector<std::byte> WithPass(uint64_t session, std::span<const std::byte> message);

// Data thread only.
class Gate {
 public:
  explicit Gate(std::string secret) : secret_(std::move(secret)) {}

  const std::string& secret() const { return secret_; }
  // Without a secret any process may send anything.
  bool open() const { return secret_.empty(); }

  // A session that this plane begins itself: answers come under its number.
  void Begin(uint64_t session) { Remember(session); }
  // Lets a session in. False: the proof is wrong, or the session is not new, as in a replayed
  // greeting.
  bool Admit(uint64_t session, const GreetingSender& greeting_sender,
             std::span<const std::byte> address, const Proof& proof);
  bool Knows(uint64_t session) const { return sessions_.contains(session); }

  // Sessions that are remembered, the newest. Far more than any process opens connections: one that
  // is forgotten while it is in use has to be opened anew.
  static constexpr size_t kMaxSessions = 1 << 17;

 private:
  void Remember(uint64_t session);

  const std::string secret_;
  std::unordered_set<uint64_t> sessions_;
  std::deque<uint64_t> order_;  // In which they came.
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_GATE_H_
