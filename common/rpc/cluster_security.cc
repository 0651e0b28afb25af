#include "common/rpc/cluster_security.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/tls/tls_certificate.h"

namespace baton::rpc {
namespace {

namespace tls = grpc::experimental;

constexpr char kTokenKey[] = "baton-cluster-token";
constexpr char kPathKey[] = ":path";
constexpr char kPeerUri[] = "peer_uri";
constexpr char kSecurityType[] = "transport_security_type";
constexpr unsigned kLookEverySeconds = 1;

std::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

std::vector<PeerIdentity> IdentitiesIn(const std::vector<grpc::string_ref>& uris) {
  std::vector<std::string> texts;
  texts.reserve(uris.size());
  for (const grpc::string_ref& uri : uris) texts.emplace_back(uri.data(), uri.size());
  return ParseIdentities(texts);
}

std::string Named(const std::vector<PeerIdentity>& identities) {
  if (identities.empty()) return "no baton:// URI";
  return absl::StrJoin(identities, ", ", [](std::string* out, const PeerIdentity& one) {
    absl::StrAppend(out, IdentityUri(one));
  });
}

// ---- Who is called ----

// Looks at the names of a certificate whose chain gRPC has verified.
class PeerVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit PeerVerifier(std::vector<PeerIdentity> expected) : expected_(std::move(expected)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const std::vector<PeerIdentity> proved = IdentitiesIn(request->uri_names());
    const bool known = std::any_of(expected_.begin(), expected_.end(),
                                   [&](const auto& peer) { return Covers(proved, peer); });
    *status = known ? grpc::Status::OK
                    : grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                                   absl::StrCat("the certificate there names ", Named(proved),
                                                ", expected ", Named(expected_)));
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::vector<PeerIdentity> expected_;
};

// ---- Who calls ----

struct Refusal {
  grpc_status_code code = GRPC_STATUS_OK;
  std::string why;
};

// What every call of a listener is asked for.
struct CallerCheck {
  bool certificates = false;
  std::shared_ptr<SecretSet> token;  // Null: none.

  Refusal CheckToken(std::string_view path, const grpc_metadata* shown) const {
    // Health and reflection tell nothing that is worth a secret, and kubelet's probes show none.
    if (token == nullptr || !CallersOf(path).has_value()) return {};
    if (shown == nullptr) {
      return {GRPC_STATUS_UNAUTHENTICATED,
              "the call shows no cluster token (--cluster-token-file)"};
    }
    if (token->Accepts(TextOf(shown->value))) return {};
    return {GRPC_STATUS_UNAUTHENTICATED, "the call shows a wrong cluster token"};
  }

  Refusal CheckRole(std::string_view path, const grpc_auth_context* peer) const {
    const auto callers = CallersOf(path);
    if (!certificates || !callers.has_value()) return {};
    std::vector<std::string> uris;
    grpc_auth_property_iterator at = grpc_auth_context_find_properties_by_name(peer, kPeerUri);
    while (const grpc_auth_property* property = grpc_auth_property_iterator_next(&at)) {
      uris.emplace_back(property->value, property->value_length);
    }
    const std::vector<PeerIdentity> proved = ParseIdentities(uris);
    for (const PeerRole role : *callers) {
      if (Covers(proved, {role, ""})) return {};
    }
    return {GRPC_STATUS_PERMISSION_DENIED,
            absl::StrCat("the caller's certificate names ", Named(proved), ", and ",
                         std::string(path), " is for ",
                         absl::StrJoin(*callers, " and ", [](std::string* out, PeerRole role) {
                           absl::StrAppend(out, "baton://", PeerRoleName(role));
                         }))};
  }

  // gRPC's hook before a call comes to its service.
  static void Process(void* self, grpc_auth_context* peer, const grpc_metadata* metadata,
                      size_t count, grpc_process_auth_metadata_done_cb done, void* call) {
    const auto* check = static_cast<const CallerCheck*>(self);
    std::string_view path;
    const grpc_metadata* shown = nullptr;
    for (size_t i = 0; i < count; ++i) {
      if (TextOf(metadata[i].key) == kPathKey) path = TextOf(metadata[i].value);
      if (TextOf(metadata[i].key) == kTokenKey) shown = &metadata[i];
    }
    Refusal refusal = check->CheckToken(path, shown);
    if (refusal.code == GRPC_STATUS_OK) refusal = check->CheckRole(path, peer);
    // Services need not know the token.
    done(call, shown, shown == nullptr ? 0 : 1, nullptr, 0, refusal.code, refusal.why.c_str());
  }
  static void Destroy(void* self) { delete static_cast<CallerCheck*>(self); }
};

// gRPC C++ lets calls be checked only over TLS; its C core, below, over any connection. Rejected:
// interceptors, which can end a call but not keep it from its service, and a check in each method,
// which the next method would forget.
class CheckedCredentials : public grpc::ServerCredentials {
 public:
  // Takes `inner`.
  CheckedCredentials(grpc_server_credentials* inner, CallerCheck check) : inner_(inner) {
    grpc_server_credentials_set_auth_metadata_processor(
        inner_, {&CallerCheck::Process, &CallerCheck::Destroy, new CallerCheck(std::move(check))});
  }
  ~CheckedCredentials() override { grpc_server_credentials_release(inner_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {
    BATON_CHECK(false) << "calls are checked already";
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), inner_);
  }

  grpc_server_credentials* const inner_;
};

// ---- Who this process is ----

class TokenInterceptor : public tls::Interceptor {
 public:
  explicit TokenInterceptor(SecretSet& token) : token_(token) {}
  void Intercept(tls::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            tls::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({kTokenKey, token_.First()});
    }
    methods->Proceed();
  }

 private:
  SecretSet& token_;
};

class TokenInterceptors : public tls::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::shared_ptr<SecretSet> token) : token_(std::move(token)) {}
  tls::Interceptor* CreateClientInterceptor(tls::ClientRpcInfo* /*info*/) override {
    return new TokenInterceptor(*token_);  // gRPC's, which ends it with the call.
  }

 private:
  const std::shared_ptr<SecretSet> token_;
};

// gRPC's server complains of every connection to an address that its certificate does not name,
// which none of ours does.
void LogOfGrpc(gpr_log_func_args* args) {
  const std::string_view message = args->message;
  if (message.starts_with("No match found for server name")) return;
  LOG(kWarning) << "gRPC: " << args->message;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ClusterSecurity>> ClusterSecurity::Load(
    const ClusterSecurityFiles& files, const PeerIdentity& self) {
  if (files.certificate.empty() && files.token.empty()) return nullptr;
  std::shared_ptr<ClusterSecurity> made(new ClusterSecurity());
  if (!files.certificate.empty()) {
    BATON_RETURN_IF_ERROR(
        CheckOwnCertificate(files.certificate, files.key, files.authorities, self));
    gpr_set_log_function(&LogOfGrpc);
    made->provider_ = std::make_shared<tls::FileWatcherCertificateProvider>(
        files.key, files.certificate, files.authorities, kLookEverySeconds);
  }
  if (!files.token.empty()) {
    auto token = SecretSet::Load("", files.token);
    if (!token.ok()) {
      return InvalidField("cluster_token_file", std::string(token.status().message()));
    }
    made->token_ = *std::move(token);
  }
  return made;
}

// Certificates are watched by gRPC.
void ClusterSecurity::LookAtFiles() const {
  if (token_ != nullptr) (void)token_->First();
}

std::shared_ptr<grpc::ServerCredentials> ClusterSecurity::ForServer() const {
  CallerCheck check{encrypts(), token_};
  if (!encrypts()) {
    return std::make_shared<CheckedCredentials>(grpc_insecure_server_credentials_create(),
                                                std::move(check));
  }
  tls::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return std::make_shared<CheckedCredentials>(
      grpc_tls_server_credentials_create(options.c_credentials_options()), std::move(check));
}

std::shared_ptr<grpc::ChannelCredentials> ClusterSecurity::ForChannel(
    std::vector<PeerIdentity> peers) const {
  if (!encrypts()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<PeerVerifier>(std::move(peers)));
  options.set_check_call_host(false);  // Names of hosts say nothing here.
  return tls::TlsCredentials(options);
}

std::vector<std::unique_ptr<tls::ClientInterceptorFactoryInterface>> ClusterSecurity::Interceptors()
    const {
  std::vector<std::unique_ptr<tls::ClientInterceptorFactoryInterface>> factories;
  if (token_ != nullptr) factories.push_back(std::make_unique<TokenInterceptors>(token_));
  return factories;
}

absl::Status CheckCaller(const grpc::ServerContextBase& context, const PeerIdentity& claimed) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  const std::vector<grpc::string_ref> types = peer->FindPropertyValues(kSecurityType);
  if (types.empty() || types.front() == "insecure") return absl::OkStatus();
  const std::vector<PeerIdentity> proved = IdentitiesIn(peer->FindPropertyValues(kPeerUri));
  if (Covers(proved, claimed)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the caller's certificate names ", Named(proved),
                                                  ", and it says that it is ",
                                                  IdentityUri(claimed)));
}

std::shared_ptr<grpc::ServerCredentials> ClientTls(const std::string& certificate,
                                                   const std::string& key) {
  tls::TlsServerCredentialsOptions options(
      std::make_shared<tls::FileWatcherCertificateProvider>(key, certificate, kLookEverySeconds));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return tls::TlsServerCredentials(options);
}

namespace {

struct Free {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* file) const { BIO_free(file); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::unique_ptr<X509, Free> FirstIn(const std::string& path) {
  const std::unique_ptr<BIO, Free> file(BIO_new_file(path.c_str(), "r"));
  if (file == nullptr) return nullptr;
  return std::unique_ptr<X509, Free>(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
}

std::vector<std::string> UrisOf(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, Free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

}  // namespace

absl::Status CheckOwnCertificate(const std::string& certificate, const std::string& key,
                                 const std::string& authorities, const PeerIdentity& self) {
  const auto pair = TlsCertificate::Load(certificate, key);
  if (!pair.ok()) return InvalidField("cluster_tls_cert", std::string(pair.status().message()));
  const std::unique_ptr<X509, Free> own = FirstIn(certificate);
  const std::unique_ptr<X509, Free> authority = FirstIn(authorities);
  ERR_clear_error();
  if (authority == nullptr) {
    return InvalidField("cluster_tls_ca", absl::StrCat(authorities, ": no certificate in PEM"));
  }
  if (own == nullptr || X509_cmp_current_time(X509_get0_notAfter(own.get())) < 0) {
    return InvalidField("cluster_tls_cert", absl::StrCat(certificate, ": its time is over"));
  }
  const std::vector<std::string> uris = UrisOf(*own);
  if (Covers(ParseIdentities(uris), self)) return absl::OkStatus();
  return InvalidField(
      "cluster_tls_cert",
      absl::StrCat(certificate, ": its subject alternative names have ",
                   uris.empty() ? "no URI" : absl::StrCat("the URIs ", absl::StrJoin(uris, ", ")),
                   ", expected URI:", IdentityUri({self.role, ""}),
                   self.instance.empty() ? "" : absl::StrCat(" or URI:", IdentityUri(self))));
}

}  // namespace baton::rpc
