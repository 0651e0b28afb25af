// The fixture of the decode core's tests: events in, actions taken by type, invariants checked
// after every event.
#ifndef SERVICES_DECODE_CORE_DECODE_CORE_FIXTURE_H_
#define SERVICES_DECODE_CORE_DECODE_CORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "services/decode/core/decode_core.h"

namespace baton::decode {

inline constexpr int kPageSize = 4;
inline constexpr int32_t kEos = 9;
inline const InstanceRef kSelf{"decode-0", 100};
inline const std::vector<KvWriter> kWriters{{{"prefill-0", 1}, {0, 2}}, {{"prefill-1", 2}, {2, 6}}};

inline DecodeLimits Limits() {
  return {.self = kSelf,
          .layout = {.layers = 6, .kv_heads = 1, .head_dim = 1, .page_size = kPageSize},
          .page_count = 10,
          .max_running_requests = 4,
          .max_queued_requests = 2,
          .max_context_tokens = 64,
          .vocab_size = 100};
}

class DecodeCoreTest : public testing::Test {
 protected:
  explicit DecodeCoreTest(DecodeLimits limits = Limits()) : core_(std::move(limits)) {}

  // Handles an event and checks the invariants; actions are appended to those not yet taken.
  void Handle(const Event& event) {
    core_.Handle(event, now_us_, actions_);
    ASSERT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
  }

  // The oldest action of type T that has not been taken; it is taken now. Throws, which fails the
  // test, if there is none.
  template <typename T>
  T Take() {
    return TryTake<T>().value();
  }
  template <typename T>
  std::optional<T> TryTake() {
    for (auto it = actions_.begin(); it != actions_.end(); ++it) {
      if (!std::holds_alternative<T>(*it)) continue;
      T action = std::get<T>(std::move(*it));
      actions_.erase(it);
      return action;
    }
    return std::nullopt;
  }

  static ReserveRequested Request(uint64_t attempt, int prompt = 6, int max_tokens = 5) {
    ReserveRequested request;
    request.attempt_id = attempt;
    request.prompt_tokens = prompt;
    request.stop.max_tokens = max_tokens;
    request.stop.eos_ids = {kEos};
    request.writers = kWriters;
    return request;
  }
  // Reserves and expects a ticket at once.
  Ticket Reserved(const ReserveRequested& request) {
    Handle(request);
    grant_ = Take<GrantKv>().grant;
    auto reply = Take<ReplyReserve>();
    EXPECT_TRUE(reply.ticket.ok()) << reply.ticket.status();
    return reply.ticket.value_or(Ticket{});
  }
  absl::Status Refused(const ReserveRequested& request) {
    Handle(request);
    return Take<ReplyReserve>().ticket.status();
  }
  void Commit(const Ticket& ticket, int32_t first_token = 1) {
    Handle(KvCommitted{ticket.slot, ticket.generation, SampledToken{first_token, -1, {}}, 0});
  }
  // Answers the running step with `token` for every sequence.
  void FinishStep(const RunStep& step, int32_t token) {
    StepFinished finished{step.step, absl::OkStatus(), {}};
    for (const auto& sequence : step.sequences) {
      finished.outputs.push_back({sequence.attempt_id, SampledToken{token, -1, {}}});
    }
    Handle(finished);
  }
  void Drain(const Ticket& ticket) {
    const auto revoke = Take<RevokeKv>();
    EXPECT_EQ(revoke.slot, ticket.slot);
    EXPECT_EQ(revoke.generation, ticket.generation);
    Handle(KvDrained{ticket.slot, ticket.generation});
  }

  DecodeCore core_;
  int64_t now_us_ = 0;
  std::vector<Action> actions_;
  KvGrant grant_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_DECODE_CORE_FIXTURE_H_
