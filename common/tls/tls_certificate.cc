#include "common/tls/tls_certificate.h"

#include <openssl/err.h>

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int64_t kLookEveryUs = 1'000'000;
constexpr std::array<unsigned char, 9> kProtocols = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

// The reason of this thread's last error; forgets all of them.
std::string TakeError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? absl::StrCat("error ", code) : reason;
}

// A client that offers protocols but not HTTP/1.1 is answered in it all the same.
int ChooseProtocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* chosen_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void* /*unused*/) {
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(&found, chosen_bytes, kProtocols.data(),
                                           kProtocols.size(), offered, offered_bytes);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

// A key with a passphrase would ask for it on the terminal.
int NoPassphrase(char* /*buffer*/, int /*bytes*/, int /*writing*/, void* /*unused*/) { return -1; }

}  // namespace

TlsCertificate::TlsCertificate(std::string certificate_path, std::string key_path)
    : certificate_path_(std::move(certificate_path)), key_path_(std::move(key_path)) {}

absl::StatusOr<std::unique_ptr<TlsCertificate>> TlsCertificate::Load(
    const std::string& certificate_path, const std::string& key_path) {
  std::unique_ptr<TlsCertificate> made(new TlsCertificate(certificate_path, key_path));
  MutexLock lock(&made->mutex_);
  made->version_ = made->Look();
  BATON_ASSIGN_OR_RETURN(made->context_, made->Read());
  return made;
}

std::shared_ptr<SSL_CTX> TlsCertificate::Context(int64_t now_us) {
  MutexLock lock(&mutex_);
  if (now_us - looked_us_ >= kLookEveryUs) Refresh(now_us);
  return context_;
}

void TlsCertificate::Refresh(int64_t now_us) {
  looked_us_ = now_us;
  const Version version = Look();
  if (version == version_) return;
  version_ = version;
  absl::StatusOr<std::shared_ptr<SSL_CTX>> context = Read();
  if (!context.ok()) {
    LOG(kWarning) << "the changed certificate is not used: " << context.status().message();
    return;
  }
  context_ = *std::move(context);
  LOG(kInfo) << "the certificate of " << certificate_path_ << " has been read again";
}

TlsCertificate::Version TlsCertificate::Look() const {
  return {StampOf(certificate_path_), StampOf(key_path_)};
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> TlsCertificate::Read() const {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", TakeError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Without renegotiation a client cannot make the server do handshakes for ever.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);  // An idle connection holds little.
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_path_.c_str()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(certificate_path_, ": not a certificate in PEM: ", TakeError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_path_.c_str(), SSL_FILETYPE_PEM) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_path_, ": not a private key without a passphrase in PEM that belongs to ",
                     certificate_path_, ": ", TakeError()));
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_path_, ": not the key of ", certificate_path_, ": ", TakeError()));
  }
  return context;
}

}  // namespace baton
