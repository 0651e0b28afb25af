// The server's side of one TLS connection, over bytes instead of a socket. The owner reads what the
// peer sends, gives it in, and sends whatever TakeOutput has after each call.
#ifndef COMMON_TLS_TLS_SESSION_H_
#define COMMON_TLS_TLS_SESSION_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Not thread-safe.
class TlsSession {
 public:
  explicit TlsSession(std::shared_ptr<SSL_CTX> context);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Appends what `bytes` of the peer's mean to `plain`. INVALID_ARGUMENT if they are no TLS or
  // break it: the session is over, and TakeOutput has the alert for the peer.
  absl::Status Receive(std::string_view bytes, std::string& plain);

  // Only when established.
  void Send(std::string_view plain);
  // Announces the end of data, so that the peer can distinguish it from a broken connection.
  void Close();

  std::string TakeOutput();

  bool established() const { return SSL_is_init_finished(ssl_.get()) == 1; }
  // The peer has said that nothing more comes.
  bool peer_closed() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  // Receive failed because the peer speaks HTTP without TLS.
  bool spoke_plain_http() const { return spoke_plain_http_; }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  absl::Status Failure();

  const std::shared_ptr<SSL_CTX> context_;
  const std::unique_ptr<SSL, Free> ssl_;
  BIO* const from_peer_;  // Owned by `ssl_`, as is the other.
  BIO* const to_peer_;
  bool spoke_plain_http_ = false;
};

}  // namespace baton

#endif  // COMMON_TLS_TLS_SESSION_H_
