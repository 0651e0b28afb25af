#include "tests/sim/worker_drain.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

constexpr int64_t kLookAgainUs = 20'000;
constexpr int64_t kLeaveUs = 500'000;  // For the last heartbeat.

}  // namespace

WorkerDrain::WorkerDrain(World& world, const Topology& topology, int node,
                         WorkerMembership& membership, Hooks hooks)
    : world_(world),
      topology_(topology),
      node_(node),
      membership_(membership),
      hooks_(std::move(hooks)) {
  membership_.SetDrainHandler([this] { Begin(topology_.times.asked_drain_us); });
}

void WorkerDrain::Begin(int64_t drain_us) {
  if (drain_.has_value()) return;
  world_.Trace(node_, absl::StrCat("DRAIN within ", drain_us / 1000, " ms"));
  drain_.emplace(
      worker::DrainOptions{.drain_us = drain_us, .ending_us = topology_.times.drain_ending_us});
  drain_->Begin(world_.now_us());
  hooks_.begin(drain_->deadline_us());
  membership_.StopConnecting();
  membership_.ReportSoon();
  Look();
}

void WorkerDrain::Look() {
  const worker::DrainPhase before = drain_->phase();
  std::string why_not;
  const worker::DrainNews news = membership_.drain_news();
  const worker::DrainFacts facts{hooks_.at_rest(why_not), news.untold_routers,
                                 news.needed_requests};
  if (drain_->Update(facts, world_.now_us()) == worker::DrainPhase::kLeaving) return Leave(before);
  membership_.ReportSoon();
  world_.After(node_, kLookAgainUs, "drain timer", [this] { Look(); });
}

void WorkerDrain::Leave(worker::DrainPhase before) {
  std::string why_not;
  const bool in_time =
      before == worker::DrainPhase::kDraining && world_.now_us() < drain_->deadline_us();
  if (in_time && !hooks_.at_rest(why_not)) {
    world_.Violate(absl::StrCat(world_.name(node_), " leaves and holds something: ", why_not));
  }
  // Where messages are late or lost a router may be taken for dead, and its requests for ended.
  const bool unneeded = in_time && topology_.only_drains && topology_.undisturbed;
  membership_.Leave(unneeded, [world = &world_, node = node_] { world->Exit(node); });
  // The router may not answer.
  world_.After(node_, kLeaveUs, "leaves unheard", [this] { world_.Exit(node_); });
}

}  // namespace baton::sim
