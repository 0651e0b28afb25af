// How the processes of a cluster know one another over gRPC: mutual TLS, whose certificates name
// roles (peer_identity.h), or a token that all of them hold, or both. The one place that checks
// calls, and that shows who this process is. docs/security.md says against whom that helps.
#ifndef COMMON_RPC_CLUSTER_SECURITY_H_
#define COMMON_RPC_CLUSTER_SECURITY_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/peer_identity.h"
#include "common/secrets/secret_set.h"

namespace baton::rpc {

// Paths; empty ones are not used.
struct ClusterSecurityFiles {
  std::string certificate;  // The three come together.
  std::string key;
  std::string authorities;
  std::string token;
};

// Thread-safe. Files are read again when they change; connections keep what they began with.
class ClusterSecurity {
 public:
  // Null where nothing is configured: peers are not checked. INVALID_ARGUMENT names the option and
  // what is wrong: files that can't be read, a key of another certificate, a certificate that is
  // over or does not name `self`.
  static absl::StatusOr<std::shared_ptr<const ClusterSecurity>> Load(
      const ClusterSecurityFiles& files, const PeerIdentity& self);

  ClusterSecurity(const ClusterSecurity&) = delete;
  ClusterSecurity& operator=(const ClusterSecurity&) = delete;

  bool encrypts() const { return provider_ != nullptr; }

  // For a cluster listener. A call reaches a service only if its caller shows the
  // token, if there is one, and whose certificate names a role that may make it (CallersOf), if
  // there are certificates. Other calls get UNAUTHENTICATED or PERMISSION_DENIED and reach no
  // service.
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;

  // For a channel to a peer. With certificates, the peer must prove to be one of `peers`.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(std::vector<PeerIdentity> peers) const;
  // Calls do so themselves. For those that stand: a token's file that has changed is read, and the
  // log says so, also while no other call is made.
  void LookAtFiles() const;
  // What shows the token in every call of a channel; none if there is no token.
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> Interceptors()
      const;

 private:
  ClusterSecurity() = default;

  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;  // Null: no TLS.
  std::shared_ptr<SecretSet> token_;                                            // Null: no token.
};

// OK if the caller's certificate names `claimed`, or calls need no certificate here.
// PERMISSION_DENIED says what it names.
absl::Status CheckCaller(const grpc::ServerContextBase& context, const PeerIdentity& claimed);

// The certificate of a port for clients, read again when the files change.
std::shared_ptr<grpc::ServerCredentials> ClientTls(const std::string& certificate,
                                                   const std::string& key);

// What can be known of a process's own certificate before anybody sees it.

// INVALID_ARGUMENT, naming the option: a file that is not what it should be, a key of another
// certificate, one whose time is over or that does not name `self`. Whether peers accept its
// authority only they know.
absl::Status CheckOwnCertificate(const std::string& certificate, const std::string& key,
                                 const std::string& authorities, const PeerIdentity& self);

}  // namespace baton::rpc

#endif  // COMMON_RPC_CLUSTER_SECURITY_H_
