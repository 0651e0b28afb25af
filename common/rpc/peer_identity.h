// Who a process of the cluster is, as its certificate says it: URIs among the subject alternative
// names, baton://ROLE or baton://ROLE/INSTANCE. Peers are reached by addresses that change, so host
// names are not looked at.
#ifndef COMMON_RPC_PEER_IDENTITY_H_
#define COMMON_RPC_PEER_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::rpc {

enum class PeerRole : uint8_t { kRouter, kPrefill, kDecode, kOperator };

struct PeerIdentity {
  PeerRole role = PeerRole::kRouter;
  std::string instance;  // Empty: of any name.

  bool operator==(const PeerIdentity&) const = default;
};

const char* PeerRoleName(PeerRole role);

// "baton://decode/decode-0".
std::string IdentityUri(const PeerIdentity& identity);
// nullopt: the URI names no identity of Baton's.
std::optional<PeerIdentity> ParseIdentity(std::string_view uri);
std::vector<PeerIdentity> ParseIdentities(const std::vector<std::string>& uris);

// Whether one who has proved to be `proved` may be taken for `claimed`: the role is the same, and
// so is the instance where both name one.
bool Covers(const std::vector<PeerIdentity>& proved, const PeerIdentity& claimed);

// Which roles may call `method` ("/baton.v1.Cluster/Lease"); empty: none. nullopt: the
// service is none of Baton's (health, reflection), and every peer may.
std::optional<std::vector<PeerRole>> CallersOf(std::string_view method);

}  // namespace baton::rpc

#endif  // COMMON_RPC_PEER_IDENTITY_H_
