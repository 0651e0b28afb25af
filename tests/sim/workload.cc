#include "tests/sim/workload.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kFromClientUs = 10;
constexpr int kProbesPerRouter = 3;
constexpr int64_t kBetweenProbesUs = 200'000;

}  // namespace

void Workload::Begin(const Scenario& scenario) {
  for (const Client& client : scenario.clients) Submit(client);
  world_.queue().At(kProbesUs, [this] { Probe(); });
}

void Workload::Submit(Client client) {
  const int64_t at_us = client.submit_us;
  const int64_t leaves_us = client.leaves_us;
  const int64_t aborts_us = client.aborts_us;
  const uint64_t id = clients_.Add(std::move(client));
  world_.queue().At(at_us, [this, id] {
    Client& c = clients_.Get(id);
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
  for (int i = 0; i < kProbesPerRouter * topology_.routers; ++i) {
    Client client;
    client.router = i / kProbesPerRouter;
    client.request_id = absl::StrCat("probe-", i);
    client.prompt_id = world_.random().Next();
    client.prompt_tokens = topology_.page_size * 3 + 1;
    client.max_tokens = 10;
    // One after the other: a short queue is no fault.
    client.submit_us = world_.now_us() + i * kBetweenProbesUs;
    client.deadline_us = client.submit_us + 10 * kSecond;
    client.must_succeed = true;
    Submit(std::move(client));
  }
}

}  // namespace baton::sim
