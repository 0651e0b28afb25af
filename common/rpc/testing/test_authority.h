// A certificate authority for tests.
#ifndef COMMON_RPC_TESTING_TEST_AUTHORITY_H_
#define COMMON_RPC_TESTING_TEST_AUTHORITY_H_

#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

namespace baton::rpc::testing {

class TestAuthority {
 public:
  // Its files go to `directory`, which must be there.
  explicit TestAuthority(const std::string& directory);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  struct Files {
    std::string certificate;
    std::string key;
  };
  // A certificate with these URIs, valid from now for `valid_s`; negative: over for so long. The
  // files are called `name`.crt and `name`.key, and replace what was there.
  Files Issue(const std::string& name, const std::vector<std::string>& uris, long valid_s = 3600);

  std::string certificate() const { return directory_ + "/ca.crt"; }

 private:
  const std::string directory_;
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
};

}  // namespace baton::rpc::testing

#endif  // COMMON_RPC_TESTING_TEST_AUTHORITY_H_
