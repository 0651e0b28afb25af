#include "common/collective/bootstrap_store.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status ValidateBootstrapEntry(const std::string& key, const std::string& value) {
  if (key.size() <= kBootstrapKeyBytesMax && value.size() <= kBootstrapValueBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("an entry of ", key.size(), " + ", value.size(),
                                                 " bytes, expected at most ", kBootstrapKeyBytesMax,
                                                 " + ", kBootstrapValueBytesMax));
}

void BootstrapStore::Put(const std::string& key, const std::string& value) {
  MutexLock lock(&mutex_);
  entries_.emplace(key, value);
}

void BootstrapStore::End(absl::Status why) {
  MutexLock lock(&mutex_);
  ended_.Update(std::move(why));
}

absl::Status BootstrapStore::Set(const std::string& key, const std::string& value) {
  if (absl::Status status = ValidateBootstrapEntry(key, value); !status.ok()) return status;
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    if (own_entries_ == kBootstrapEntriesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("more than ", own_entries_, " entries"));
    }
    if (!entries_.emplace(key, value).second) {
      return absl::AlreadyExistsError(absl::StrCat(key, " is set already"));
    }
    ++own_entries_;
  }
  publish_(key, value);
  return absl::OkStatus();
}

absl::StatusOr<std::string> BootstrapStore::Get(const std::string& key, int64_t timeout_ms) {
  MutexLock lock(&mutex_);
  mutex_.AwaitFor(std::chrono::milliseconds(timeout_ms),
                  [this, &key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                    return entries_.count(key) > 0 || !ended_.ok();
                  });
  if (!ended_.ok()) return ended_;
  const auto entry = entries_.find(key);
  if (entry != entries_.end()) return entry->second;
  return absl::DeadlineExceededError(
      absl::StrCat("no rank has set ", key, " within ", timeout_ms, " ms"));
}

absl::Status BootstrapStore::ended() {
  MutexLock lock(&mutex_);
  return ended_;
}

bool BootstrapStore::Has(const std::string& key) {
  MutexLock lock(&mutex_);
  return entries_.count(key) > 0;
}

}  // namespace baton
