// Baton's envelope around a UCX worker address. UCX parses an address without knowing its length,
// so a truncated or foreign one would make it read past the end: the envelope is checked first.
#ifndef COMMON_TRANSPORT_PEER_ADDRESS_H_
#define COMMON_TRANSPORT_PEER_ADDRESS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// The longest sealed address; UCX's are about a hundred bytes per network device.
inline constexpr size_t kMaxPeerAddressBytes = 64 << 10;

struct PeerAddress {
  std::string ucx;
  std::string secret;  // The data plane's; empty: it needs none.
};

// Wraps the address with magic, version, lengths and checksum. One with a secret has a version that
// older processes refuse: they could not show it.
std::string SealPeerAddress(std::string_view ucx_address, std::string_view secret = "");

// INVALID_ARGUMENT if `sealed` is not exactly what SealPeerAddress made. The checksum catches
// damage, not forgery: addresses come from authenticated peers only.
absl::StatusOr<PeerAddress> OpenPeerAddress(std::string_view sealed);

}  // namespace baton

#endif  // COMMON_TRANSPORT_PEER_ADDRESS_H_
