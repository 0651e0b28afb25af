#include "common/rpc/testing/test_authority.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "common/base/check.h"

namespace baton::rpc::testing {
namespace {

void WriteFile(const std::string& path, const std::function<int(FILE*)>& write) {
  const std::string fresh = path + ".new";
  FILE* file = std::fopen(fresh.c_str(), "w");
  BATON_CHECK(file != nullptr && write(file) == 1) << path;
  std::fclose(file);
  std::filesystem::rename(fresh, path);
}

void WriteCertificate(const std::string& path, X509* certificate) {
  WriteFile(path, [certificate](FILE* file) { return PEM_write_X509(file, certificate); });
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  BATON_CHECK(extension != nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(EVP_PKEY* key, const std::string& name, long from_s, long until_s) {
  static long serial = 1;
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), until_s);
  X509_set_pubkey(certificate, key);
  // Issuers are found by name.
  const std::string unique = name + " " + std::to_string(serial);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(unique.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

TestAuthority::TestAuthority(const std::string& directory)
    : directory_(directory), key_(EVP_EC_gen("P-256")) {
  BATON_CHECK(key_ != nullptr);
  certificate_ = NewCertificate(key_, "authority", 0, 3600);
  X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  AddExtension(certificate_, NID_basic_constraints, "critical,CA:TRUE");
  BATON_CHECK(X509_sign(certificate_, key_, EVP_sha256()) > 0);
  WriteCertificate(certificate(), certificate_);
}

TestAuthority::~TestAuthority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

TestAuthority::Files TestAuthority::Issue(const std::string& name,
                                          const std::vector<std::string>& uris, long valid_s) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* issued = NewCertificate(key, name, valid_s < 0 ? 2 * valid_s : 0, valid_s);
  X509_set_issuer_name(issued, X509_get_subject_name(certificate_));
  std::string names;
  for (const std::string& uri : uris) names += (names.empty() ? "URI:" : ",URI:") + uri;
  if (!names.empty()) AddExtension(issued, NID_subject_alt_name, names);
  BATON_CHECK(X509_sign(issued, key_, EVP_sha256()) > 0);
  Files files{directory_ + "/" + name + ".crt", directory_ + "/" + name + ".key"};
  WriteFile(files.key, [key](FILE* file) {
    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  WriteCertificate(files.certificate, issued);
  X509_free(issued);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace baton::rpc::testing
