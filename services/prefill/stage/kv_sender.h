// Sends a stage's KV towards the processes of decode services: page runs as the executor exports
// them, the heads of each that are wanted there, commits, and the heartbeats that keep this stage's
// grants alive. What may be under way, and in what order, is the outbox's to decide
// (core/kv_outbox.h).
#ifndef SERVICES_PREFILL_STAGE_KV_SENDER_H_
#define SERVICES_PREFILL_STAGE_KV_SENDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/serial_events.h"
#include "common/engine/executor.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "services/prefill/core/kv_outbox.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

// The outbox lives on the data thread, where a message's end makes room for the next without a
// detour. An executor with its pages in host memory exports a message there, just before it is
// sent: its bytes are then hashed and sent while they are in the cache, the first is on its way
// before the second is hashed, and control waits for 4 MiB of hashing at most (rejected: hashing a
// whole chunk on the loop before its first byte leaves).
class KvSender final : public MessageHandler {
 public:
  struct Options {
    InstanceRef self;
    Executor* executor = nullptr;     // Its pages are exported until the KvSent event.
    DataPlane* data_plane = nullptr;  // Shut down before this object goes.
    Metrics* metrics = nullptr;
    // Any thread, all three. `want`: as Peers::Want; null: endpoints stand or do not.
    std::function<std::optional<PeerId>(const InstanceRef&)> find_peer;
    std::function<bool(const std::vector<InstanceRef>&)> want;
    std::function<void(StageEvent)> on_event;
  };
  explicit KvSender(Options options);

  // Registers for decode's receipts and greetings.
  absl::Status Start();

  // Loop thread, up to SendHeartbeats; done on the data thread in the order of the calls. The first
  // two end with exactly one KvSent each. What is for a process of decode that is not connected
  // waits while an endpoint to it is being opened. If that can't be, or a send fails, the status is
  // UNAVAILABLE with leg "decode" and its name, in the first case Unconnected.
  void Send(const SendKv& action);
  void Commit(const SendCommit& action);
  // What is not being sent yet ends with CANCELLED: of a request that is aborted, of an epoch.
  void Cancel(uint64_t attempt_id);
  void CancelAll();
  // The request is closed on this stage.
  void Forget(uint64_t attempt_id);

  // Endpoints have changed; any thread.
  void OnEndpoints();

  // Says to `decodes` that this stage lives; data thread.
  void SendHeartbeats(const std::vector<PeerId>& decodes);
  // Data thread, a few times a second.
  void Tick(int64_t now_us);

  // A receipt, or a decode service's greeting.
  std::optional<Placement> OnHeader(std::span<const std::byte> header,
                                    size_t payload_bytes) override;
  void OnPlaced(uint64_t, const absl::Status&) override {}

 private:
  // Data thread from here on.
  // Runs `change` on the outbox, there, and does what comes of it.
  bool Submit(std::function<void(std::vector<KvOutboxAction>&)> change);
  void Perform(const std::vector<KvOutboxAction>& actions);
  void Perform(const ExportKv& action);
  void OnExported(uint64_t message_id, const absl::StatusOr<ExportedKv>& exported);
  void Perform(const SendKvMessage& action);
  void Perform(const SendCommitMessage& action);
  void Perform(const KvSent& sent);
  void Deliver(uint64_t message_id, const InstanceRef& decode, Outgoing message);
  void SendHeld();
  void MessageEnded(uint64_t message_id, const InstanceRef& decode, size_t bytes,
                    const absl::Status& status);

  const Options options_;
  KvOutbox outbox_;
  // A message may end at once, while it is being sent: what comes of that waits its turn.
  SerialEvents<std::vector<KvOutboxAction>> actions_{
      [this](const std::vector<KvOutboxAction>& actions) { Perform(actions); }};
  std::map<uint64_t, ExportedKv> exports_;  // By message, until it has ended.
  std::set<PeerId> beating_;                // Peers whose last heartbeat is still on its way.
  struct Held {
    uint64_t message_id = 0;
    InstanceRef decode;
    Outgoing message;
  };
  std::vector<Held> held_;  // While endpoints are opened; the outbox bounds them.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_KV_SENDER_H_
