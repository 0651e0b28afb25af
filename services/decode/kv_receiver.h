// The receiving end of the KV hand-off: checks every arriving header with the lease table, places
// accepted bytes in the executor's landings, verifies them, and reports to the decode core and, by
// receipts, to the writers.
#ifndef SERVICES_DECODE_KV_RECEIVER_H_
#define SERVICES_DECODE_KV_RECEIVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/executor.h"
#include "common/kv/head_routes.h"
#include "common/kv/lease_table.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "services/prefill/core/member_grants.h"

namespace baton::decode {

// The lease table is used on the data thread, where bytes are placed. Both directions between it
// and the decode core's loop have reserved room in the mailboxes: a lost Drained would hold its
// pages forever.
class KvReceiver final : public prefill::KvInlet {
 public:
  struct Options {
    LeaseTableOptions table;
    Executor* executor = nullptr;  // KV of its layers and heads lands in its pages.
    DataPlane* data_plane = nullptr;
    Metrics* metrics = nullptr;
    // Any thread, both. `want`: as Peers::Want; null: endpoints stand or do not.
    std::function<std::optional<PeerId>(const InstanceRef&)> find_peer;
    std::function<bool(const std::vector<InstanceRef>&)> want;
    // Passes events to the core's loop, in order; false if it can't now. Data thread.
    std::function<bool(std::vector<LeaseEvent>)> deliver;
  };
  // Shut the data plane down before destroying this object.
  explicit KvReceiver(Options options);

  // Registers for the hand-off's messages and starts the tick; neither if it fails.
  absl::Status Start();

  // Any thread; done on the data thread in the order of the calls.
  void Grant(KvGrant grant) override;
  void Revoke(uint32_t slot, uint64_t generation) override;
  // Calls `then` when all earlier calls have taken effect: a ticket must not be sent before its
  // grant is in force.
  void After(std::function<void()> then) override;

  // Endpoints have changed; any thread.
  void OnEndpoints();

  // When the last tick was, on NowUs()'s clock.
  int64_t last_tick_us() const { return last_tick_us_.load(std::memory_order_relaxed); }

 private:
  // Handles two kinds of messages.
  class Pages : public MessageHandler {
   public:
    explicit Pages(KvReceiver* owner) : owner_(owner) {}
    std::optional<Placement> OnHeader(std::span<const std::byte> header, size_t bytes) override {
      return owner_->OnPages(header, bytes);
    }
    void OnPlaced(uint64_t receipt, const absl::Status& status) override {
      owner_->OnPagesPlaced(receipt, status);
    }

   private:
    KvReceiver* const owner_;
  };
  class Control : public MessageHandler {
   public:
    explicit Control(KvReceiver* owner) : owner_(owner) {}
    std::optional<Placement> OnHeader(std::span<const std::byte> header, size_t bytes) override {
      return owner_->OnControl(header, bytes);
    }
    void OnPlaced(uint64_t receipt, const absl::Status& status) override {}

   private:
    KvReceiver* const owner_;
  };
  struct UnderWay {
    std::vector<KvPiece> pieces;
    uint64_t bytes = 0;
  };

  std::vector<PageRun> RunsOf(const KvPlacement& allowed) const;
  std::optional<Placement> OnPages(std::span<const std::byte> header, size_t payload_bytes);
  void OnPagesPlaced(uint64_t receipt, const absl::Status& status);
  void OnLanded(uint64_t receipt, uint64_t bytes, const absl::StatusOr<uint64_t>& checksum);
  std::optional<Placement> OnControl(std::span<const std::byte> header, size_t payload_bytes);
  std::optional<Placement> Refuse(const char* reason, const absl::Status& status);
  void OnTick(int64_t now_us);

  void Submit(std::function<void()> command);
  void Flush();
  void SendReceipts();
  void Greet();
  void Count(const LeaseEvent& event);

  const Options options_;
  LeaseTable table_;                           // Data thread, like all below.
  std::map<uint64_t, UnderWay> under_way_;     // By receipt.
  std::map<uint64_t, int64_t> first_byte_us_;  // By generation of open grants.
  std::vector<LeaseEvent> outbox_;             // Bounded by three events for each slot.
  std::vector<KvReceipt> held_receipts_;       // While endpoints are opened.
  std::set<InstanceRef> to_greet_;             // Writers of grants.
  std::map<InstanceRef, PeerId> greeted_;      // By the endpoint that carried it.
  Pages pages_{this};
  Control control_{this};
  std::atomic<int64_t> last_tick_us_{0};
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_KV_RECEIVER_H_
