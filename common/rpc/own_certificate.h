// What can be known of a process's own certificate before anybody sees it.
#ifndef COMMON_RPC_OWN_CERTIFICATE_H_
#define COMMON_RPC_OWN_CERTIFICATE_H_

#include <string>

#include "absl/status/status.h"
#include "common/rpc/peer_identity.h"

namespace baton::rpc {

// INVALID_ARGUMENT, naming the option: a file that is not what it should be, a key of another
// certificate, one whose time is over or that does not name `self`. Whether peers accept its
// authority only they know.
absl::Status CheckOwnCertificate(const std::string& certificate, const std::string& key,
                                 const std::string& authorities, const PeerIdentity& self);

}  // namespace baton::rpc

#endif  // COMMON_RPC_OWN_CERTIFICATE_H_
