// Groups of ranks that are services of one process: what ConnectRanks is between processes.
#ifndef SERVICES_PREFILL_TESTING_MEMORY_GROUPS_H_
#define SERVICES_PREFILL_TESTING_MEMORY_GROUPS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/collective/message_transport.h"
#include "common/engine/connect_group.h"

namespace baton::prefill {

// Any thread.
class MemoryGroups {
 public:
  explicit MemoryGroups(int64_t operation_timeout_ms)
      : operation_timeout_ms_(operation_timeout_ms) {}

  // The ranks tell one another by way of the store that they are there.
  ConnectGroup Connect();

 private:
  std::unique_ptr<MessageTransport> TransportOf(const GroupDescription& group);

  const int64_t operation_timeout_ms_;
  Mutex mutex_;
  // By name and epoch; a rank takes its own.
  std::map<std::pair<std::string, uint64_t>, std::vector<std::unique_ptr<MessageTransport>>>
      transports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_TESTING_MEMORY_GROUPS_H_
