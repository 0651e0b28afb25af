#include "tests/sim/workload.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/content.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kFromClientUs = 10;
constexpr int kProbesPerRouter = 3;
constexpr int64_t kBetweenProbesUs = 200'000;
constexpr int64_t kProbesAgainUs = 2 * kSecond;
constexpr int64_t kLastProbeUs = 8 * kSecond;

}  // namespace

void Workload::Begin(const Scenario& scenario) {
  clients_.SetCancel([this](uint64_t id) { Leave(id); });
  for (const Client& client : scenario.clients) Submit(client);
  world_.queue().At(ProbesUs(), [this] { Probe(); });
}

void Workload::Submit(Client client) {
  const int64_t at_us = client.submit_us;
  const int64_t leaves_us = client.leaves_us;
  const int64_t aborts_us = client.aborts_us;
  const uint64_t id = clients_.Add(std::move(client));
  world_.queue().At(at_us, [this, id] {
    Client& c = clients_.Get(id);
    if (c.finished) return;  // Its answer has ended.
    if (!world_.alive(c.router)) {
      c.finished = true;
      c.status = absl::UnavailableError("no router");
      return;
    }
    c.submitted = true;
    world_.After(c.router, kFromClientUs, "client request", [this, id, router = c.router] {
      static_cast<RouterProcess*>(world_.process(router))->Submit(id);
    });
  });
  if (leaves_us != kNeverUs) world_.queue().At(leaves_us, [this, id] { Leave(id); });
  if (aborts_us != kNeverUs) world_.queue().At(aborts_us, [this, id] { Abort(id); });
}

void Workload::Leave(uint64_t id) {
  const int router = clients_.Get(id).router;
  if (!world_.alive(router) || clients_.Get(id).finished) return;
  clients_.Get(id).left = true;
  if (!clients_.Get(id).submitted) {
    clients_.Get(id).finished = true;
    return;
  }
  world_.After(router, kFromClientUs, "client leaves", [this, id, router] {
    static_cast<RouterProcess*>(world_.process(router))->Cancel(id);
  });
}

// By its request's id, as another connection does it; the request may not have come, or be over.
void Workload::Abort(uint64_t id) {
  const Client& client = clients_.Get(id);
  if (!world_.alive(client.router)) return;
  world_.After(client.router, kFromClientUs, "abort request",
               [this, router = client.router, request_id = client.request_id] {
                 clients_.AbortCalled(router, request_id);
                 static_cast<RouterProcess*>(world_.process(router))->AbortRequest(request_id);
               });
}

void Workload::Probe() {
  for (int router = 0; router < topology_.routers; ++router) {
    static_cast<RouterProcess*>(world_.process(router))->CheckServesAll();
  }
  for (int i = 0; i < kProbesPerRouter * topology_.routers; ++i) {
    SendProbe(i / kProbesPerRouter, world_.now_us() + i * kBetweenProbesUs);
  }
  world_.queue().At(world_.now_us() + kProbesAgainUs, [this] { ProbeAgain(); });
}

void Workload::SendProbe(int router, int64_t at_us) {
  Client client;
  client.router = router;
  client.request_id = absl::StrCat("probe-", ++probes_);
  client.prompt_id = NewPromptId(world_.random());
  client.prompt_tokens = topology_.page_size * 3 + 1;
  client.max_tokens = 10;
  // One after the other: a short queue is no fault.
  client.submit_us = at_us;
  client.deadline_us = client.submit_us + 10 * kSecond;
  client.must_succeed = true;
  Submit(std::move(client));
}

// Until every chain and every decode service has answered one: where all are idle, requests go to
// the one that was used the longest ago, by policies that go by turns or load alone.
void Workload::ProbeAgain() {
  if (topology_.policy != router::Policy::kLeastLoad &&
      topology_.policy != router::Policy::kRoundRobin) {
    return;
  }
  const std::string idle = FindIdle();
  if (idle.empty()) return;
  if (world_.now_us() >= ProbesUs() + kLastProbeUs + kProbesAgainUs) {
    return world_.Violate(absl::StrCat(idle, " serves no request of a healed cluster"));
  }
  if (world_.now_us() < ProbesUs() + kLastProbeUs) SendProbe(0, world_.now_us());
  world_.queue().At(world_.now_us() + kProbesAgainUs / 2, [this] { ProbeAgain(); });
}

std::string Workload::FindIdle() const {
  for (int chain = 0; chain < topology_.chains; ++chain) {
    std::string id = absl::StrCat("chain-", chain);
    if (!clients_.HasServed(id)) return id;
  }
  for (int decode = 0; decode < topology_.decodes + topology_.colocated; ++decode) {
    const int node = topology_.DecodeNode(decode);
    std::string id = topology_.InstanceId(world_.name(node), world_.incarnation(node));
    if (topology_.Serves(node) && !clients_.HasServed(id)) return id;
  }
  return "";
}

}  // namespace baton::sim
