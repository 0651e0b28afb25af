// How often this router may send a request again: a share of the requests that came lately, and a
// few beside it so that a quiet router may retry at all. Retries are work that a cluster in trouble
// gets on top of its load; without a bound every failure doubles it just when it cannot be borne
// (Google SRE book, ch. 22; Finagle's RetryBudget and Envoy's retry_budget are the same idea).
#ifndef SERVICES_ROUTER_CORE_RETRY_BUDGET_H_
#define SERVICES_ROUTER_CORE_RETRY_BUDGET_H_

#include <array>
#include <cstdint>

namespace baton::router {

struct RetryBudgetOptions {
  int percent = 20;    // Retries, as a share of the requests begun in the window.
  int per_second = 3;  // Retries allowed in addition.
};

// Time is counted in whole seconds, the window is the last kWindowSeconds of them.
class RetryBudget {
 public:
  static constexpr int kWindowSeconds = 10;

  explicit RetryBudget(RetryBudgetOptions options) : options_(options) {}

  // A request's first attempt.
  void Begin(int64_t now_us) { ++SlotOf(now_us).begun; }

  // False: no retry is left. True: one was, and is taken.
  bool Take(int64_t now_us);

 private:
  struct Slot {
    int64_t second = -1;
    int64_t begun = 0;
    int64_t retries = 0;
  };
  Slot& SlotOf(int64_t now_us);

  const RetryBudgetOptions options_;
  std::array<Slot, kWindowSeconds> slots_;  // By second modulo its size.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_RETRY_BUDGET_H_
