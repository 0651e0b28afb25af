// The calls that the attempts' legs are made of: Reserve and Generate at a decode service, Start at
// stage 0; or Generate alone, at stage 0 of a colocated chain. RouterCore says which leg begins and
// which is aborted; this says which call that is and how long it may take, what its messages and
// its end mean to the attempt, in whose words a failure is told, and who is told of an abort.
// Deterministic.
//
// Each call that was opened is told to RouterCore once: by its answer or by its failure. Nothing of
// a leg is told after its abort, nor of a request that was forgotten.
//
// An answer is complete with the word of who decodes. Whether the stream then ends well, breaks or
// says more is no matter of the request any more. Rejected: to wait for the stream's end, which can
// take a whole answer back that its client has in full.
#ifndef SERVICES_ROUTER_CORE_LEG_CALLS_H_
#define SERVICES_ROUTER_CORE_LEG_CALLS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"
#include "services/router/core/router_core.h"

namespace baton::router {

enum class LegCall : uint8_t { kReserve, kStream, kStart, kGenerate };

// Make this call now. How it ends is said once, also if it can't be made at all.
struct BeginCall {
  uint64_t attempt_id = 0;
  LegCall call = LegCall::kReserve;
  InstanceRef worker;
  std::string address;
  int64_t timeout_ms = 0;  // What the worker is told of the request's time. >= 1
  int64_t give_up_us = 0;  // The call ends with DEADLINE_EXCEEDED then; kNeverUs: not by itself.
};

// What a stream says: a token, its end (nullopt: for a reason that is none), or what is neither.
struct StreamFinished {
  std::optional<FinishReason> reason;
};
struct StreamMalformed {};
using StreamMessage = std::variant<SampledToken, StreamFinished, StreamMalformed>;

// ---- Actions ----
struct CancelCall {
  uint64_t attempt_id = 0;
  LegCall call = LegCall::kReserve;
};
struct SendAbort {  // A separate call. Its answer is not awaited, and it may be lost.
  uint64_t attempt_id = 0;
  Role leg = Role::kDecode;
  InstanceRef worker;
  std::string address;
  std::string reason;
  int64_t timeout_ms = 0;
};
struct TellRouter {  // ReserveReplied, TokenReceived, DecodeEnded or PrefillEnded.
  Event event;
};
using LegAction = std::variant<CancelCall, SendAbort, TellRouter>;

class LegCalls {
 public:
  // Tokens outside [0, vocab_size) are no tokens.
  explicit LegCalls(int vocab_size) : vocab_size_(vocab_size) {}

  // ---- What RouterCore wants. `address` is the worker's, "" if it has left. ----

  // nullopt: there is nothing to call, and the failure is told already.
  std::optional<BeginCall> Open(const Reserve& action, const std::string& address, int64_t now_us,
                                std::vector<LegAction>& actions);
  std::optional<BeginCall> Open(const OpenStream& action, const std::string& address,
                                int64_t now_us, std::vector<LegAction>& actions);
  std::optional<BeginCall> Open(const StartPrefill& action, const std::string& address,
                                int64_t now_us, std::vector<LegAction>& actions);
  std::optional<BeginCall> Open(const StartGeneration& action, const std::string& address,
                                int64_t now_us, std::vector<LegAction>& actions);
  // Tells the worker, too, even if its call has ended: a call's failure does not prove that the far
  // side has let go of the request. One that was never called is told nothing.
  void Abort(const AbortDecode& action, std::vector<LegAction>& actions);
  void Abort(const AbortPrefill& action, std::vector<LegAction>& actions);
  // The request `call_id` is over.
  void Forget(uint64_t call_id);

  // ---- What the transport says, with the status as it came. An answer counts with OK alone. ----

  void ReserveEnded(uint64_t attempt_id, const absl::Status& status,
                    const absl::StatusOr<Ticket>& ticket, std::vector<LegAction>& actions);
  // Either stream, of a decode service or of a colocated chain.
  void StreamSaid(uint64_t attempt_id, const StreamMessage& message,
                  std::vector<LegAction>& actions);
  void StreamEnded(uint64_t attempt_id, const absl::Status& status,
                   std::vector<LegAction>& actions);
  // What a colocated chain knows of a prompt it has read. `expected` as below.
  void PromptTold(uint64_t attempt_id, const std::vector<SampledToken>& prompt_tokens,
                  std::span<const int32_t> expected, std::vector<LegAction>& actions);
  // `expected`: the prompt's tokens from the second on if they were asked for, else empty.
  void StartEnded(uint64_t attempt_id, const absl::Status& status,
                  const std::vector<SampledToken>& prompt_tokens, std::span<const int32_t> expected,
                  std::vector<LegAction>& actions);

  bool AtRest() const { return attempts_.empty(); }
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  struct Leg {
    InstanceRef worker;  // Without a name: it was never called.
    std::string address;
    std::optional<LegCall> running;  // The call that has not ended.
    bool told = false;               // What comes of it.
    bool prompt_told = false;        // By kGenerate.
  };
  struct Attempt {
    uint64_t call_id = 0;
    Leg decode;
    Leg prefill;
  };

  void Remember(uint64_t call_id, uint64_t attempt_id);
  LegCall StreamOf(uint64_t attempt_id) const;
  std::optional<BeginCall> Begin(uint64_t attempt_id, Role role, LegCall call,
                                 const InstanceRef& worker, const std::string& address,
                                 int64_t deadline_us, int64_t now_us,
                                 std::vector<LegAction>& actions);
  // The leg of an attempt if it waits for this call; nullptr: whatever comes of it is too late.
  // `ends`: the call is over with this.
  Leg* Waiting(uint64_t attempt_id, LegCall call, bool ends);
  static void Abort(uint64_t attempt_id, Role role, const std::string& reason, Leg& leg,
                    std::vector<LegAction>& actions);

  const int vocab_size_;
  std::map<uint64_t, Attempt> attempts_;          // The last one of each request.
  std::map<uint64_t, uint64_t> attempt_of_call_;  // By request.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEG_CALLS_H_
