// Certificates for tests, signed by themselves, for localhost and 127.0.0.1.
#ifndef COMMON_TLS_TESTING_TEST_CERTIFICATE_H_
#define COMMON_TLS_TESTING_TEST_CERTIFICATE_H_

#include <string>

namespace baton {

struct TestCertificate {
  std::string certificate_pem;
  std::string key_pem;
};

// `common_name` tells one from another.
TestCertificate MakeTestCertificate(const std::string& common_name);

}  // namespace baton

#endif  // COMMON_TLS_TESTING_TEST_CERTIFICATE_H_
