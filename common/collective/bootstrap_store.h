// What a rank's network library needs to know of the others before it has a connection to them
// (Gloo: every pair's address), while it connects: keys and values that each rank sets once. What
// is set here goes to whoever carries it to the others (rendezvous.h), what they set comes in by
// Put. No port of its own, unlike c10d's TCPStore.
#ifndef COMMON_COLLECTIVE_BOOTSTRAP_STORE_H_
#define COMMON_COLLECTIVE_BOOTSTRAP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"

namespace baton {

// Of one rank's; what is more is refused. Gloo needs 2 entries, the larger of 136 bytes for each
// other rank.
inline constexpr size_t kBootstrapEntriesMax = 8;
inline constexpr size_t kBootstrapKeyBytesMax = 256;
inline constexpr size_t kBootstrapValueBytesMax = size_t{64} << 10;

// InvalidArgument if an entry is larger than that.
absl::Status ValidateBootstrapEntry(const std::string& key, const std::string& value);

class BootstrapStore {
 public:
  using Publish = std::function<void(const std::string& key, const std::string& value)>;

  // `publish` carries what this rank sets to the others; on the thread that sets.
  explicit BootstrapStore(Publish publish) : publish_(std::move(publish)) {}

  // Another rank's entry; any thread.
  void Put(const std::string& key, const std::string& value);
  // Ends every Get that waits, and those to come; any thread, the first reason stands.
  void End(absl::Status why);

  // For the library. Set refuses a second value for a key, and more than fits.
  absl::Status Set(const std::string& key, const std::string& value);
  // Waits until somebody has set it: DEADLINE_EXCEEDED after `timeout_ms`, or the End's status.
  absl::StatusOr<std::string> Get(const std::string& key, int64_t timeout_ms);
  bool Has(const std::string& key);
  // The End's status; OK before. For a library that waits for something else.
  absl::Status ended();

 private:
  const Publish publish_;
  Mutex mutex_;
  std::map<std::string, std::string> entries_ ABSL_GUARDED_BY(mutex_);
  size_t own_entries_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_BOOTSTRAP_STORE_H_
