// What a worker's transport makes of its endpoints: pings over each, the silent ones among them,
// and their ends. Plays common/transport/ucx_data_plane.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/worker_membership.h"

namespace baton::sim {
namespace {

// Share of silent endpoints that are silent from their opening, since a greeting was lost.
constexpr double kSilentFromTheFirst = 0.3;
constexpr int64_t kLatestSilenceUs = 6'000'000;

}  // namespace

void WorkerMembership::FallSilent(uint64_t endpoint) {
  const bool first = world_.random().Chance(kSilentFromTheFirst);
  const Silence how = world_.random().Chance(0.5) ? Silence::kCalledSent : Silence::kNeverEnds;
  const auto fall = [this, endpoint, how] {
    const auto found = live_.find(endpoint);
    if (found == live_.end()) return;                  // Closed.
    if (world_.faults().endpoint_silent == 0) return;  // Healed meanwhile.
    found->second.silence = how;
    world_.Trace(node_, absl::StrCat("ENDPOINT to ", found->second.peer.id, " falls silent"));
  };
  if (first) return fall();
  world_.After(node_, world_.random().Between(1000, kLatestSilenceUs), "endpoint falls silent",
               fall);
}

void WorkerMembership::Swallow(SimEndpoint& endpoint, const char* label, std::function<void()> read,
                               std::function<void(absl::Status)> sent) {
  if (endpoint.silence == Silence::kNeverEnds) {
    endpoint.stuck.push_back({std::move(read), std::move(sent)});
    return;
  }
  world_.After(node_, 1, label, [read = std::move(read), sent = std::move(sent)] {
    read();
    sent(absl::OkStatus());
  });
}

// The endpoint is closed, so nothing reads these messages any more.
void WorkerMembership::EndStuck(SimEndpoint endpoint) {
  for (SimEndpoint::Stuck& stuck : endpoint.stuck) {
    world_.After(node_, 1, "send ends with its endpoint", [stuck = std::move(stuck)] {
      stuck.read();
      stuck.sent(absl::UnavailableError("peer does not answer"));
    });
  }
}

void WorkerMembership::LookAfterEndpoints() {
  const int64_t now_us = world_.now_us();
  std::vector<std::pair<uint64_t, uint64_t>> pings;
  std::vector<uint64_t> dead;
  for (auto& [number, endpoint] : live_) {
    if (const auto ping = endpoint.life.TakePing(now_us)) pings.emplace_back(number, *ping);
    if (!endpoint.life.Check(now_us).ok()) dead.push_back(number);
  }
  for (const auto& [number, sequence] : pings) Ping(number, sequence);
  for (const uint64_t number : dead) {
    const auto found = live_.find(number);
    const InstanceRef peer = found->second.peer;
    world_.Trace(node_, absl::StrCat("ENDPOINT to ", peer.id, " is given up"));
    if (world_.calm() && found->second.silence == Silence::kNone) {
      world_.Violate(
          absl::StrCat(info_.instance.id, " gives up an endpoint that works, to ", peer.id));
    }
    EndStuck(std::move(found->second));
    live_.erase(found);
    world_.After(node_, world_.random().Between(1, 60), "endpoint is given up",
                 [this, number] { events_.Raise(worker::PeerFailed{number}); });
  }
  world_.After(node_, times_.endpoint_silence_us / 12, "endpoints are looked after",
               [this] { LookAfterEndpoints(); });
}

void WorkerMembership::Ping(uint64_t endpoint, uint64_t sequence) {
  World* const world = &world_;
  const auto answer = [world, from = node_, self = info_.instance, endpoint, sequence](
                          Process& peer, bool corrupt) {
    if (corrupt) return;
    world->SendData<Process>(
        NodeOf(peer.worker()->id()), from, self.incarnation, 0, "pong", [] {},
        [endpoint, sequence](Process& opener, bool damaged) {
          if (!damaged) opener.worker()->Ponged(endpoint, sequence);
        },
        [](const absl::Status&) {});
  };
  SendOver<Process>(
      endpoint, 0, "ping", [] {}, answer, [](const absl::Status&) {});
}

void WorkerMembership::Ponged(uint64_t endpoint, uint64_t sequence) {
  const auto found = live_.find(endpoint);
  if (found != live_.end()) found->second.life.Answered(sequence, world_.now_us());
}

}  // namespace baton::sim
