// A server's certificate chain and private key.
#ifndef COMMON_TLS_TLS_CERTIFICATE_H_
#define COMMON_TLS_TLS_CERTIFICATE_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/files.h"
#include "common/base/sync.h"

namespace baton {

// Thread-safe.
class TlsCertificate {
 public:
  // `certificate_path`: PEM, the server's own first, then the intermediate ones. `key_path`: PEM,
  // without a passphrase. INVALID_ARGUMENT names the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<TlsCertificate>> Load(const std::string& certificate_path,
                                                              const std::string& key_path);

  // For a new session at `now_us`. At most once a second it looks whether the files have changed; a
  // pair that cannot be used is logged once, and the last good one stays. Sessions keep what they
  // began with.
  std::shared_ptr<SSL_CTX> Context(int64_t now_us);

 private:
  struct Version {
    FileStamp certificate;
    FileStamp key;
    bool operator==(const Version&) const = default;
  };

  TlsCertificate(std::string certificate_path, std::string key_path);
  Version Look() const;
  absl::StatusOr<std::shared_ptr<SSL_CTX>> Read() const;
  void Refresh(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string certificate_path_;
  const std::string key_path_;
  Mutex mutex_;
  Version version_ ABSL_GUARDED_BY(mutex_);  // The files at the last attempt.
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mutex_);
  int64_t looked_us_ ABSL_GUARDED_BY(mutex_) = INT64_MIN / 2;
};

}  // namespace baton

#endif  // COMMON_TLS_TLS_CERTIFICATE_H_
