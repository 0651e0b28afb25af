// What link.h promises of a member's link, held against all that it hears: which epochs it takes,
// refuses and ends, by what words, when it tries to begin and when it is ready, and until when it
// waits for a silent stage 0. A second account that shares no code with the core; what the core
// does must be exactly what this one expects. Of followers of a decode service as well.
#ifndef TESTS_SIM_LINK_WITNESS_H_
#define TESTS_SIM_LINK_WITNESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/links/core/link.h"
#include "tests/sim/world.h"

namespace baton::sim {

class LinkWitness {
 public:
  LinkWitness(World& world, links::ChainPlace place, const links::ChainTimes& times);

  // After every Handle.
  void Saw(const links::LinkEvent& event, const std::vector<links::LinkAction>& actions,
           const links::Link& core);

 private:
  enum class Phase { kNone, kBeginning, kForming, kReady };

  void Hear(const links::HelloArrived& event);
  void Hear(const links::PingHeard& event);
  void Hear(const links::WorkHeard& event);
  void Hear(const links::LinkGone& event);
  void Hear(const links::EpochTried& event);
  void Hear(const links::GroupFormed& event);
  void Hear(const links::StageFailed& event) { End(event.status.code(), event.status); }
  void Hear(const links::LinkTick& event);

  bool begun() const { return phase_ == Phase::kForming || phase_ == Phase::kReady; }
  // With `status` itself, or with words of the core's own.
  void End(absl::StatusCode code, const std::optional<absl::Status>& status = std::nullopt);
  void Refuse(const links::HelloArrived& event, uint64_t newest_epoch);
  void Expect(const links::LinkAction& action);
  int64_t DueUs() const;
  void Complain(const std::string& what);

  World& world_;
  const links::ChainPlace place_;
  const links::ChainTimes times_;
  Phase phase_ = Phase::kNone;
  uint64_t link_ = 0;
  links::Hello hello_;
  uint64_t newest_epoch_ = 0;
  int64_t heard_us_ = 0;
  int64_t begin_by_us_ = 0;
  int64_t try_us_ = 0;

  // State for the event being checked.
  std::vector<std::string> expected_;  // Actions, in their order.
  std::optional<absl::Status> end_;    // The whole status of the end, if one was given.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_LINK_WITNESS_H_
