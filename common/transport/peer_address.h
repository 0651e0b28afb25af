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

// Wraps `ucx_address` with magic, version, length and checksum.
std::string SealPeerAddress(std::string_view ucx_address);

// The UCX address within `sealed`; INVALID_ARGUMENT if it is not exactly what SealPeerAddress made.
// The checksum catches damage, not forgery: addresses come from authenticated peers only.
absl::StatusOr<std::string> OpenPeerAddress(std::string_view sealed);

}  // namespace baton

#endif  // COMMON_TRANSPORT_PEER_ADDRESS_H_
