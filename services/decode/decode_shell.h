// Owns the decode core and carries out its actions: answers calls, grants and revokes leases,
// starts steps. Everything runs on the loop unless stated otherwise.
#ifndef SERVICES_DECODE_DECODE_SHELL_H_
#define SERVICES_DECODE_DECODE_SHELL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/serial_events.h"
#include "common/engine/sampling/compiling_requests.h"
#include "common/telemetry/metrics.h"
#include "services/decode/core/decode_core.h"
#include "services/decode/kv_receiver.h"
#include "services/decode/ranks/rank_links.h"
#include "services/decode/reserve_call.h"
#include "services/decode/step_runner.h"
#include "services/worker/token_stream.h"

namespace baton::decode {

class DecodeShell {
 public:
  struct Options {
    DecodeLimits limits;
    KvReceiver* kv = nullptr;
    StepRunner* runner = nullptr;
    RankLinks* ranks = nullptr;  // Null: the service is one process.
    Metrics* metrics = nullptr;
    // Runs a task on the loop; false: it has stopped. Any thread.
    std::function<bool(std::function<void()>)> post;
  };
  explicit DecodeShell(const Options& options);

  // A checked reservation. `call` is answered exactly once.
  void Reserve(ReserveRequested request, std::shared_ptr<SequenceSampling> sampling,
               std::shared_ptr<ReserveCall> call);
  void Open(uint64_t attempt_id, uint64_t generation, std::shared_ptr<worker::TokenStream> stream);
  void Abort(uint64_t attempt_id, const absl::Status& reason);
  // Only if the attempt still holds the ticket of that generation.
  void Release(uint64_t attempt_id, uint64_t generation);
  int FlushCache();  // Returns the number of pages that are free by that.
  // The client of this call or stream is gone; another call of the attempt is not affected.
  void Cancelled(uint64_t attempt_id, const ReserveCall* call);
  void Cancelled(uint64_t attempt_id, const worker::TokenStream* stream);

  // Events of the ranks' links.
  void OnRanks(Event event) { Handle(std::move(event)); }
  void OnLeaseEvents(const std::vector<LeaseEvent>& events);
  void OnStepFinished(const StepFinished& finished, int64_t compute_us);

  // The loop's wake handler, for deadlines. Returns when to be called again.
  int64_t Wake(int64_t now_us);

  // Refuses reservations from now on, and ends what is left at the deadline.
  void BeginDrain(int64_t deadline_us);

  bool draining() const { return core_.draining(); }
  bool joined() const { return core_.joined(); }
  bool may_join() const { return core_.may_join(); }
  DrainCounts drain_counts() const { return core_.drain_counts(); }
  bool AtRest() const { return core_.AtRest() && compiling_.empty(); }
  DecodeLoad load() const { return core_.load(); }

 private:
  // From Reserve to the request's terminal action; the core forgets it at the same time.
  struct Session {
    std::shared_ptr<SequenceSampling> sampling;
    int64_t arrived_us = 0;
    uint64_t generation = 0;               // 0: no ticket yet.
    std::shared_ptr<ReserveCall> reserve;  // Until the stream opens.
    std::shared_ptr<worker::TokenStream> stream;
  };

  // A reservation that the core hears of once its structure is compiled.
  struct Asked {
    ReserveRequested request;
    std::shared_ptr<SequenceSampling> sampling;
    std::shared_ptr<ReserveCall> call;
  };

  static auto Is(uint64_t attempt_id) {
    return [attempt_id](const Asked& asked) { return asked.request.attempt_id == attempt_id; };
  }
  void Begin(Asked asked);
  void BeginCompiled(int64_t now_us);
  void Handle(Event event) { events_.Raise(std::move(event)); }
  void HandleOne(const Event& event);
  void Perform(Action& action);
  void Perform(ReplyReserve& action);
  void Perform(GrantKv& action);
  void Perform(const RevokeKv& action);
  void Perform(const DeliverToken& action);
  void Perform(const RefuseStream& action);
  void Perform(const Finish& action);
  void Perform(RunStep& action);
  void Perform(const PartRanks& action) { options_.ranks->Part(action.status); }

  const Options options_;
  DecodeCore core_;
  std::map<uint64_t, Session> sessions_;  // By attempt.
  CompilingRequests<Asked> compiling_;
  std::shared_ptr<worker::TokenStream>
      opening_;  // The stream of the StreamOpened that is being handled.
  SerialEvents<Event> events_{[this](const Event& event) { HandleOne(event); }};
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SHELL_H_
