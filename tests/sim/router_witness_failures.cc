// What a failure of an attempt must lead to: another attempt, a wait for one, or the request's end,
// with whom it blames.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/router_witness.h"

namespace baton::sim {
namespace {

constexpr int kMostRefusals = 16;  // As overload.cc has it.
constexpr int kMostHandBacks = 64;

bool OtherPairsWouldSayTheSame(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kOutOfRange ||
         code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kPermissionDenied;
}

}  // namespace

void RouterWitness::Fail(Request& request, Role reporter, absl::Status status) {
  const bool first = !std::exchange(anybody_fails_, true);
  if (request.complete()) {
    MustEnd(request, {request.answer});
    return MustClose(request);
  }
  Failure failure;
  const std::string leg = LegOf(status).value_or("");
  failure.blamed = leg == "prefill" ? Role::kPrefill : leg == "decode" ? Role::kDecode : reporter;
  if (request.pair.colocated()) failure.blamed = Role::kPrefill;
  const bool by_decode = failure.blamed == Role::kDecode;
  failure.pair = request.pair;
  InstanceRef suspect = by_decode ? request.pair.decode : request.pair.chain.stage0;
  if (!LegOf(status).has_value()) {
    status = WithLeg(status, by_decode ? "decode" : "prefill", suspect.id);
  }
  for (const KvWriter& stage : request.pair.chain.stages) {
    const bool named = InstanceOf(status) == stage.instance.id;
    if (!by_decode && named) suspect = stage.instance;
  }
  for (const InstanceRef& follower : request.pair.followers) {
    if (by_decode && InstanceOf(status) == follower.id) suspect = follower;
  }
  if (IsUnconnected(status) && absl::IsUnavailable(status)) {
    members_.CouldNotConnect(request.pair);
  } else if (absl::IsUnavailable(status)) {
    members_.Failed(suspect);
  }
  failure.full = IsOverloaded(status) && request.phase != Phase::kDecoding;
  failure.of_text = request.told > 0;
  request.drawn = std::max(0, request.told - 1);
  failure.status = status;
  failure.otherwise = {std::nullopt,
                       status.code(),
                       LegOf(status).value_or(""),
                       InstanceOf(status).value_or(""),
                       IsEndedByDrain(status),
                       IsOverloaded(status)};
  MustClose(request);
  calls_.erase(std::exchange(request.attempt, 0));
  request.prefill_counts = false;
  failure.full ? JudgeRefused(request, failure) : JudgeFailed(request, failure, first);
  request.phase = Phase::kWaiting;
  request.failing = std::move(failure);
}

void RouterWitness::JudgeRefused(const Request& request, Failure& failure) {
  failure.otherwise.code = absl::StatusCode::kResourceExhausted;
  failure.otherwise.leg = failure.blamed == Role::kDecode ? "decode" : "prefill";
  ++totals_.RetriesOf(failure.blamed).refused_total;
  HearRefusal(failure.blamed == Role::kDecode ? request.pair.decode : request.pair.chain.stage0,
              failure.status);
  const bool in_vain = members_.Pairs().empty() && PairAwaitedUntilUs() == 0;
  const bool may =
      request.refused < kMostRefusals && request.asked.deadline_us > world_.now_us() && !in_vain;
  failure.takes_budget = true;
  failure.lacks_budget = may && !BudgetAllows();
  failure.goes_on = may && BudgetAllows();
}

void RouterWitness::JudgeFailed(const Request& request, Failure& failure, bool first) {
  const absl::Status& status = failure.status;
  failure.handed_back =
      (IsEndedByDrain(status) || IsUnconnected(status)) && request.handed_back < kMostHandBacks;
  bool may_try = failure.handed_back ||
                 request.attempts - request.handed_back - request.refused < limits_.max_attempts;
  if (request.told > 0) {
    const int failed = failure.handed_back ? 0 : request.failed_resumes;
    may_try = failed < limits_.max_resumes;
  }
  if (!may_try || request.asked.deadline_us <= world_.now_us() ||
      OtherPairsWouldSayTheSame(status.code())) {
    return;
  }
  // It waits, however many do.
  if (members_.Pairs().empty()) {
    failure.goes_on = PairAwaitedUntilUs() != 0;
  } else {
    // What others that have failed before it begin on now is known later.
    failure.must_begin = first && FitsSome(request, &failure, /*with_room=*/true);
    failure.goes_on = FitsSome(request, &failure, /*with_room=*/false);
  }
  failure.takes_budget = !failure.handed_back && !absl::IsUnavailable(status);
  if (!failure.takes_budget || BudgetAllows()) return;
  failure.lacks_budget = failure.goes_on;
  failure.goes_on = failure.must_begin = false;
}

bool RouterWitness::BudgetAllows() {
  const int64_t now_s = world_.now_us() / 1'000'000;
  for (auto* times : {&begun_s_, &retried_s_}) {
    while (!times->empty() && times->front() <= now_s - router::RetryBudget::kWindowSeconds) {
      times->pop_front();
    }
  }
  const auto begun = static_cast<int64_t>(begun_s_.size());
  const auto retried = static_cast<int64_t>(retried_s_.size());
  const int64_t beside =
      int64_t{limits_.retry_budget.per_second} * router::RetryBudget::kWindowSeconds;
  return 100 * (retried + 1 - beside) <= begun * limits_.retry_budget.percent;
}

void RouterWitness::MustEnd(const Request& request, End end) {
  ends_due_[request.asked.call_id] = std::move(end);
}

void RouterWitness::MustClose(Request& request) {
  if (!request.pair.colocated() && std::exchange(request.prefill_open, false)) {
    closes_prefill_[request.attempt] = request.pair.chain.stage0;
  }
  MustCloseDecode(request);
}

// A colocated chain has one call, which is both legs.
void RouterWitness::MustCloseDecode(Request& request) {
  if (!std::exchange(request.decode_open, false)) return;
  if (request.pair.colocated()) request.prefill_open = false;
  (request.pair.colocated() ? closes_prefill_ : closes_decode_)[request.attempt] =
      request.pair.decode;
}

}  // namespace baton::sim
