// All ranks of a group in one process, over a virtual network and in virtual time. It runs the same
// core as processes do, with ranks that die, stop or are slow. Equal schedules give equal runs. No
// threads: everything runs on the schedule's thread.
#ifndef COMMON_COLLECTIVE_TESTING_IN_PROCESS_GROUP_H_
#define COMMON_COLLECTIVE_TESTING_IN_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/collective/collective_core.h"
#include "common/collective/communicator.h"

namespace baton {

// Virtual time, such as common/sim's EventQueue.
struct Schedule {
  std::function<int64_t()> now_us;
  std::function<void(int64_t at_us, std::function<void()> run)> at;
};

class InProcessGroup {
 public:
  struct Options {
    collective::CoreOptions core;
    int64_t latency_us = 50;        // Every message's, until SetLatency.
    int64_t loss_notice_us = 1000;  // Until the others notice that a rank has died.
  };

  // One description for each rank, in their order; they differ where a test wants ranks that
  // don't belong together.
  InProcessGroup(const std::vector<GroupDescription>& ranks, const Options& options,
                 Schedule schedule);
  ~InProcessGroup();  // What is under way goes with it, without being done.
  InProcessGroup(const InProcessGroup&) = delete;
  InProcessGroup& operator=(const InProcessGroup&) = delete;

  Communicator& rank(int rank);
  bool formed(int rank) const;
  // Why the rank's group has ended; OK while it has not.
  const absl::Status& ended(int rank) const;

  // The rank's communicator is given back in good order.
  void Leave(int rank);
  // The process ends: what it has sent arrives, then its connections break.
  void Kill(int rank);
  // The process is stopped and goes on: in between it neither reads, sends nor sees time pass.
  void Stop(int rank);
  void Continue(int rank);
  // Sets the latency of messages from one rank to another from now on; their order stays.
  void SetLatency(int from, int to, int64_t latency_us);

 private:
  class Rank;
  struct Network;
  std::shared_ptr<Network> network_;
};

}  // namespace baton

#endif  // COMMON_COLLECTIVE_TESTING_IN_PROCESS_GROUP_H_
