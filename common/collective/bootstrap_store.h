// The keys and values with which a rank's network library finds the other ranks while it connects
// (Gloo: its addresses). Each rank sets each key once. A carrier (rendezvous.h) sends what is set
// here to the other ranks, and delivers their entries by Put. Unlike c10d's TCPStore it has no port
// of its own.
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

// Limits of one rank's entries; more are refused. Gloo needs 2 entries, the larger one with 136
// bytes for each other rank.
inline constexpr size_t kBootstrapEntriesMax = 8;
inline constexpr size_t kBootstrapKeyBytesMax = 256;
inline constexpr size_t kBootstrapValueBytesMax = size_t{64} << 10;

// InvalidArgument if an entry exceeds them.
absl::Status ValidateBootstrapEntry(const std::string& key, const std::string& value);

class BootstrapStore {
 public:
  using Publish = std::function<void(const std::string& key, const std::string& value)>;

  // `publish` sends what this rank sets to the others; it is called on the thread that sets.
  explicit BootstrapStore(Publish publish) : publish_(std::move(publish)) {}

  // Another rank's entry; any thread.
  void Put(const std::string& key, const std::string& value);
  // Ends every Get, now and later. Any thread; the first reason stands.
  void End(absl::Status why);

  // For the library. Set refuses a second value for a key, and entries beyond the limits.
  absl::Status Set(const std::string& key, const std::string& value);
  // Waits until a rank has set the key: DEADLINE_EXCEEDED after `timeout_ms`, or the End's status.
  absl::StatusOr<std::string> Get(const std::string& key, int64_t timeout_ms);
  bool Has(const std::string& key);
  // The End's status; OK before it. For a library that waits for something else.
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
