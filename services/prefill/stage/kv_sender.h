// Sends a stage's KV towards the decode services: page runs straight from the executor's pages,
// commits, and the heartbeats that keep this stage's grants alive.
#ifndef SERVICES_PREFILL_STAGE_KV_SENDER_H_
#define SERVICES_PREFILL_STAGE_KV_SENDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/executor.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

// Loop thread, but for SendHeartbeats.
class KvSender {
 public:
  struct Options {
    InstanceRef self;
    Executor* executor = nullptr;     // Its pages are read until the KvSent event.
    DataPlane* data_plane = nullptr;  // Shut down before this object goes.
    Metrics* metrics = nullptr;
    std::function<std::optional<PeerId>(const InstanceRef&)> find_peer;
    std::function<void(StageEvent)> on_event;  // Any thread.
  };
  explicit KvSender(Options options);

  // Each ends with exactly one KvSent. A decode service that is not connected, or a send that
  // fails, is UNAVAILABLE with leg "decode".
  void Send(const SendKv& action);
  void Commit(const SendCommit& action);

  // The request is closed on this stage, or its epoch is over.
  void Forget(uint64_t attempt_id) { checksum_sums_.erase(attempt_id); }
  void ForgetAll() { checksum_sums_.clear(); }

  // Says to `decodes` that this stage lives; data thread.
  void SendHeartbeats(const std::vector<PeerId>& decodes);

 private:
  void Deliver(uint64_t epoch, uint64_t send_id, const InstanceRef& decode, Outgoing message);
  void ClearTail(int page, int valid_tokens);
  std::function<void(const absl::Status&)> Completion(uint64_t epoch, uint64_t send_id,
                                                      const InstanceRef& decode, int64_t bytes);

  const Options options_;
  const LayerRange layers_;
  std::map<uint64_t, uint64_t> checksum_sums_;  // By attempt, of the runs sent so far.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_KV_SENDER_H_
