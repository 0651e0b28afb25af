// The clients of a simulated cluster: what each asked for, what it has heard, and what it may
// expect. They outlive routers, so a request of a dead router ends here with a broken connection.
#ifndef TESTS_SIM_CLIENTS_H_
#define TESTS_SIM_CLIENTS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/sampled_token.h"
#include "services/router/core/router_core.h"
#include "tests/sim/oracle.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

struct Client {
  int router = 0;  // Node.
  std::string request_id;
  uint64_t prompt_id = 0;
  int prompt_tokens = 0;
  int max_tokens = 0;
  int64_t submit_us = 0;
  int64_t deadline_us = 0;
  int64_t leaves_us = kNeverUs;
  int64_t aborts_us = kNeverUs;  // By Inference.Abort.
  int stop_after = 0;            // Tokens whose text ends with a stop string; 0: none.
  bool prompt_logprobs = false;
  bool must_succeed = false;  // Sent to a healed cluster.
  int group = -1;             // Choices of one answer (n > 1) share it; -1: a single choice.
  // What happened.
  bool submitted = false;
  bool taken = false;      // By the router.
  bool too_early = false;  // The first router has had no pair yet.
  bool left = false;
  bool aborted = false;  // Inference.Abort was called with its id.
  bool finished = false;
  absl::Status status;
  bool prompt_told = false;
  std::vector<int32_t> tokens;
};

class Clients {
 public:
  Clients(World& world, const Topology& topology, Oracle& oracle)
      : world_(world), topology_(topology), oracle_(oracle) {}

  uint64_t Add(Client client);
  Client& Get(uint64_t id) { return clients_[id]; }
  const Client& Get(uint64_t id) const { return clients_[id]; }
  const std::vector<Client>& all() const { return clients_; }

  // Taken by its router, which has a ready pair or not.
  void Submitted(uint64_t id, bool router_ready);
  void OnPrompt(uint64_t id, const std::vector<SampledToken>& tokens);
  // True: its text has just matched a stop string.
  bool OnToken(uint64_t id, int32_t token);
  void OnFinished(uint64_t id, const absl::StatusOr<FinishReason>& outcome);
  // How a choice that fails takes the others of its answer with it.
  void SetCancel(std::function<void(uint64_t id)> cancel) { cancel_ = std::move(cancel); }
  // A healed cluster's probe was answered by these.
  struct Servers {
    std::string chain_id;
    std::string decode;  // Instance.
  };
  void ServedBy(uint64_t id, const Servers& servers);
  bool HasServed(const std::string& server) const { return served_.contains(server); }
  void RouterDied(int router);
  void AbortCalled(int router, const std::string& request_id);
  bool AllDone() const;
  bool AnyRuns(int router) const;  // Taken, and not ended.

  // Requests that are running past their deadline break I2; `slack_us` is the bound of the
  // response.
  void CheckDeadlines(int64_t slack_us, const std::function<bool(int router)>& router_up);

 private:
  // In calm weather a request may be ended by its client, its deadline, a full queue, a prompt that
  // no pool can hold or a drain's time, and by nothing else.
  void CheckCalm(uint64_t id, const Client& client);
  // Whether that drain may have ended it.
  void CheckDrained(uint64_t id, const Client& client);
  void EndGroup(uint64_t id);
  int CountRunning() const;
  bool HasTwin(uint64_t id) const;  // Whether another request has its request id.
  bool Fits(const Client& client) const;

  World& world_;
  const Topology& topology_;
  bool first_router_was_ready_ = false;
  Oracle& oracle_;
  std::vector<Client> clients_;
  std::function<void(uint64_t id)> cancel_;
  std::set<std::string> served_;  // Chains and decode services.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_CLIENTS_H_
