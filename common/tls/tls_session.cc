#include "common/tls/tls_session.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

constexpr size_t kRecordBytes = size_t{16} * 1024;  // The most that a record holds (RFC 8446, 5.1).

}  // namespace

TlsSession::TlsSession(std::shared_ptr<SSL_CTX> context)
    : context_(std::move(context)),
      ssl_(SSL_new(context_.get())),
      from_peer_(BIO_new(BIO_s_mem())),
      to_peer_(BIO_new(BIO_s_mem())) {
  BATON_CHECK(ssl_ != nullptr && from_peer_ != nullptr && to_peer_ != nullptr) << "out of memory";
  SSL_set_bio(ssl_.get(), from_peer_, to_peer_);
  SSL_set_accept_state(ssl_.get());
}

absl::Status TlsSession::Receive(std::string_view bytes, std::string& plain) {
  ERR_clear_error();
  size_t taken = 0;
  // Memory takes all that there is memory for.
  BATON_CHECK(bytes.empty() || BIO_write_ex(from_peer_, bytes.data(), bytes.size(), &taken) == 1)
      << "out of memory";
  // The handshake is part of reading.
  static thread_local std::array<char, kRecordBytes> block;
  while (true) {
    size_t count = 0;
    if (SSL_read_ex(ssl_.get(), block.data(), block.size(), &count) == 1) {
      plain.append(block.data(), count);
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), 0);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) return absl::OkStatus();
    return Failure();
  }
}

absl::Status TlsSession::Failure() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  spoke_plain_http_ =
      ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return absl::InvalidArgumentError(
      absl::StrCat("TLS: ", reason == nullptr ? "the peer broke the protocol" : reason));
}

void TlsSession::Send(std::string_view plain) {
  if (plain.empty()) return;
  ERR_clear_error();
  size_t taken = 0;
  // Over memory a write is always taken whole. After a fatal alert it is not, and the peer does not
  // read it.
  (void)SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &taken);
}

void TlsSession::Close() {
  ERR_clear_error();
  if (established()) (void)SSL_shutdown(ssl_.get());
}

std::string TlsSession::TakeOutput() {
  std::string bytes(BIO_pending(to_peer_), '\0');
  size_t count = 0;
  if (!bytes.empty()) (void)BIO_read_ex(to_peer_, bytes.data(), bytes.size(), &count);
  bytes.resize(count);
  return bytes;
}

}  // namespace baton
