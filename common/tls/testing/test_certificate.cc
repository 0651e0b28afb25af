#include "common/tls/testing/test_certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr long kDaySeconds = 24L * 60 * 60;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(bytes)};
}

}  // namespace

TestCertificate MakeTestCertificate(const std::string& common_name) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  BATON_CHECK(key != nullptr && certificate != nullptr) << "OpenSSL makes no key";
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kDaySeconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  X509_add_ext(certificate.get(), names, -1);
  X509_EXTENSION_free(names);
  BATON_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0) << "OpenSSL signs nothing";

  const std::unique_ptr<BIO, decltype(&BIO_free)> certificate_text(BIO_new(BIO_s_mem()), BIO_free);
  const std::unique_ptr<BIO, decltype(&BIO_free)> key_text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(certificate_text.get(), certificate.get());
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {Text(certificate_text.get()), Text(key_text.get())};
}

}  // namespace baton
