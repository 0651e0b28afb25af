#include "common/rpc/own_certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/tls/tls_certificate.h"

namespace baton::rpc {
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
