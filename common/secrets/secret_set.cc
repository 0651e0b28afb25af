#include "common/secrets/secret_set.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr size_t kMaxSecrets = 1024;
constexpr size_t kMaxSecretBytes = 1024;
constexpr int64_t kMaxFileBytes = 1 << 20;

}  // namespace

bool SameSecret(std::string_view given, std::string_view expected) {
  return given.size() == expected.size() &&
         CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
}

absl::StatusOr<std::shared_ptr<SecretSet>> SecretSet::Load(std::string option, std::string path) {
  std::shared_ptr<SecretSet> made(new SecretSet(std::move(option), std::move(path)));
  if (made->path_.empty()) return made;
  MutexLock lock(&made->mutex_);
  made->stamp_ = StampOf(made->path_);
  made->looked_us_ = NowUs();
  BATON_ASSIGN_OR_RETURN(made->from_file_, made->Read());
  return made;
}

absl::StatusOr<std::vector<std::string>> SecretSet::Read() const {
  const auto wrong = [this](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", parts...));
  };
  if (StampOf(path_).bytes > kMaxFileBytes)
    return wrong("is larger than ", kMaxFileBytes, " bytes");
  std::ifstream file(path_);
  if (!file) return wrong("cannot be read");
  std::vector<std::string> secrets;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string secret(absl::StripAsciiWhitespace(line));
    if (secret.empty() || secret.front() == '#') continue;
    // What a header can carry.
    const bool printable = std::all_of(secret.begin(), secret.end(),
                                       [](unsigned char c) { return absl::ascii_isgraph(c); });
    if (!printable || secret.size() > kMaxSecretBytes) {
      return wrong("line ", number, " is no secret: expected up to ", kMaxSecretBytes,
                   " printable ASCII characters without a blank");
    }
    secrets.push_back(secret);
    if (secrets.size() > kMaxSecrets) return wrong("has more than ", kMaxSecrets, " secrets");
  }
  if (secrets.empty()) return wrong("has no secret: expected one a line");
  return secrets;
}

void SecretSet::Refresh() {
  const int64_t now_us = NowUs();
  if (path_.empty() || now_us - looked_us_ < kLookEveryUs) return;
  looked_us_ = now_us;
  const FileStamp stamp = StampOf(path_);
  if (stamp == stamp_) return;
  stamp_ = stamp;
  absl::StatusOr<std::vector<std::string>> secrets = Read();
  if (!secrets.ok()) {
    LOG(kWarning) << "the changed secrets are not used: " << secrets.status().message();
    return;
  }
  from_file_ = *std::move(secrets);
  LOG(kInfo) << path_ << " has been read again: " << from_file_.size() << " secrets";
}

bool SecretSet::Accepts(std::string_view given) {
  MutexLock lock(&mutex_);
  Refresh();
  bool found = !option_.empty() && SameSecret(given, option_);
  // All of them, so that the time does not say which one it was.
  for (const std::string& secret : from_file_) found |= SameSecret(given, secret);
  return found;
}

std::string SecretSet::First() {
  MutexLock lock(&mutex_);
  Refresh();
  if (!option_.empty() || from_file_.empty()) return option_;
  return from_file_.front();
}

}  // namespace baton
