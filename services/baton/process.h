// What every long-running command does with its process: logging, limits, failpoints, signals, its
// own addresses, its proof of who it is, exit codes.
#ifndef SERVICES_BATON_PROCESS_H_
#define SERVICES_BATON_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;     // May go well another time.
inline constexpr int kExitUsage = 2;      // Options or a model with which it can never start.
inline constexpr int kExitPermanent = 3;  // As started it can never work.

// Whether another start with the same options would meet the same: kExitUsage for invalid
// arguments, kExitPermanent for what is absent or refused (a router that refuses this worker),
// kExitFailed for what may pass (a port that is taken, a router that is away, memory that
// is short). Supervisors go by it.
int ExitCodeOf(const absl::Status& status);

// First of all, in every command: opens /dev/null in the place of standard descriptors that are
// closed, which the next file or socket would take, and ignores SIGPIPE, since a reader of what a
// command prints who goes is no reason to end.
void PrepareDescriptors();

// "2026-11-23 17:08:27.289 UTC"
std::string UtcText(int64_t unix_us);

// Puts a queue between what this process prints and its reader (common/base/stdio_queue.h). A line
// that says how many are missing is a log line of `name`. Before threads start.
absl::Status QueueProcessOutput(const v1::Options& options, const std::string& name);

// The queue of the output, logging under `name`, failpoints, as many file descriptors as the system
// allows, and SIGINT and SIGTERM blocked for EndOnSignal and WaitForStop. Logs `notes`, those of
// the command line (ParsedOptions), a line each. Call before any thread starts.
absl::Status PrepareProcess(const v1::Options& options, const std::string& name,
                            const std::vector<std::string>& notes);

// How the C library keeps freed memory. Without this it gives every 128 KiB at a heap's end back at
// once, and a prompt's ids, which several messages hold one after the other, are faulted in anew
// for each of them.
struct HeapBounds {
  int own_mapping_bytes =
      0;  // Blocks of this size are mapped on their own, and given back when they are freed.
  int kept_bytes = 0;  // Free at the end of each heap.
};
void BoundHeap(const HeapBounds& bounds);

// Replaces options.host(), and of a router cluster_host(), by the addresses to listen on and, for a
// worker, fills in advertise_host.
// Says in the log what others will reach a listener on all addresses by.
absl::Status ResolveAddresses(v1::Options& options, bool worker);

// How this process proves to the others of its cluster who it is. Null: it does not, nor are others
// asked. InvalidField for files that can't serve.
absl::StatusOr<std::shared_ptr<const rpc::ClusterSecurity>> SecureCluster(
    const v1::Options& options, rpc::PeerRole role);

// The warning to log for a cluster listener on `host` (numeric). Empty: only this machine reaches
// it, or callers are checked.
std::string OpenListenerWarning(const std::string& host,
                                const std::shared_ptr<const rpc::ClusterSecurity>& security);

// While it lives, SIGINT and SIGTERM end the process at once with `exit_code`, after a line with
// `why`.
class EndOnSignal {
 public:
  EndOnSignal(int exit_code, std::string why);
  ~EndOnSignal();
  EndOnSignal(const EndOnSignal&) = delete;
  EndOnSignal& operator=(const EndOnSignal&) = delete;

  // A process that still loads has promised nothing to anybody.
  static std::unique_ptr<EndOnSignal> WhileStarting();
  // A second signal means: don't wait for the drain.
  static std::unique_ptr<EndOnSignal> WhileDraining();

 private:
  int done_fd_ = -1;
  std::thread thread_;
};

// Returns when SIGINT or SIGTERM comes, or soon after `ended()` is true.
void WaitForStop(const std::function<bool()>& ended);

// Writes what a command was asked for to `path`, which may be a pipe or a device: so nothing is
// renamed into its place. UNAVAILABLE: it can't be written, or only in part.
absl::Status WriteOutput(const std::string& path, const std::string& text);

// "0.8 s", since `start_us` of NowUs().
std::string SecondsSince(int64_t start_us);

}  // namespace baton

#endif  // SERVICES_BATON_PROCESS_H_
