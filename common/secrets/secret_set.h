// The secrets that are accepted from others: one that an option gives, and those of a file, a line
// each, which may change while the process runs.
#ifndef COMMON_SECRETS_SECRET_SET_H_
#define COMMON_SECRETS_SECRET_SET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/files.h"
#include "common/base/sync.h"

namespace baton {

// Thread-safe.
class SecretSet {
 public:
  // `option` may be empty, and so may `path`. Of the file empty lines and those that begin with #
  // are left out, as are blanks around a secret. INVALID_ARGUMENT, naming the file: it cannot be
  // read, has no secret, too many, or one that is no printable ASCII.
  static absl::StatusOr<std::shared_ptr<SecretSet>> Load(std::string option, std::string path);

  // Neither an option nor a file: no secret is required.
  bool asks_for_nothing() const { return option_.empty() && path_.empty(); }

  // Whether `given` is one of them. Its time does not reveal how similar they are.
  bool Accepts(std::string_view given);

  // What this process shows to others: the option, or the file's first. Empty if there is none.
  std::string First();

  // The file is looked at so often at most. One that cannot be used any more is logged once, and
  // the last good secrets stay.
  static constexpr int64_t kLookEveryUs = 1'000'000;

 private:
  SecretSet(std::string option, std::string path)
      : option_(std::move(option)), path_(std::move(path)) {}
  absl::StatusOr<std::vector<std::string>> Read() const;
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string option_;
  const std::string path_;
  Mutex mutex_;
  FileStamp stamp_ ABSL_GUARDED_BY(mutex_);  // The file at the last attempt.
  int64_t looked_us_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> from_file_ ABSL_GUARDED_BY(mutex_);
};

// In a time that depends on the lengths alone.
bool SameSecret(std::string_view given, std::string_view expected);

}  // namespace baton

#endif  // COMMON_SECRETS_SECRET_SET_H_
