// A decode service in virtual time: the real core, whose steps take as long as the profile says. It
// counts a grant's commits instead of using the lease table, since nothing is lost here.
#ifndef SERVICES_SIMULATOR_SIMULATED_DECODE_H_
#define SERVICES_SIMULATOR_SIMULATED_DECODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/timed/timed_profile.h"
#include "services/decode/core/decode_core.h"
#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/virtual_time.h"

namespace baton::simulator {

class SimulatedDecode {
 public:
  // The calls to the router, at the time of the event. Tokens are those of one step.
  struct Ways {
    std::function<void(const decode::ReplyReserve&)> replied;
    std::function<void(const std::vector<decode::DeliverToken>&)> tokens;
    std::function<void(const decode::Finish&)> finished;
    std::function<void(const decode::RefuseStream&)> refused;
  };

  // `shape` and `time` outlive it.
  SimulatedDecode(const ClusterShape& shape, const InstanceRef& self, VirtualTime& time, Ways ways);

  // From the router.
  void Handle(const decode::Event& event);
  // A stage's commit, after all of its KV.
  void Commit(const Ticket& ticket, const std::optional<SampledToken>& first_token);

  Pipe& inbound() { return inbound_; }

  DecodeRecord TakeRecord() { return record_; }
  absl::Status CheckInvariants() const { return core_.CheckInvariants(); }
  bool AtRest() const { return core_.AtRest(); }

 private:
  struct Grant {
    uint32_t slot = 0;
    size_t missing = 0;  // Commits of writers that have not arrived.
    SampledToken first_token;
  };

  void Perform(const decode::Action& action, std::vector<decode::DeliverToken>& tokens);
  void Run(const decode::RunStep& step);
  void Measure();

  VirtualTime& time_;
  const Ways ways_;
  decode::DecodeCore core_;
  TimedSteps steps_;
  Pipe inbound_;
  std::map<uint64_t, Grant> grants_;  // By generation, until complete or revoked.
  Alarm alarm_;
  DecodeRecord record_;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_DECODE_H_
