// The ranks of a group as the conformance cases see them, whatever they are made of. Each test
// binary links the cases with one MakeGroup.
#ifndef COMMON_COLLECTIVE_TESTING_GROUP_HARNESS_H_
#define COMMON_COLLECTIVE_TESTING_GROUP_HARNESS_H_

#include <cstdint>
#include <memory>

#include "common/collective/testing/rank_runner.h"

namespace baton::testing {

class GroupHarness {
 public:
  virtual ~GroupHarness() = default;

  virtual void Submit(int rank, const Command& command) = 0;
  // Waits for the outcome of the rank's oldest command that has not been taken.
  virtual Outcome Take(int rank) = 0;
  virtual void Abort(int rank, const absl::Status& why) = 0;
  // The rank gives its communicator back; nothing is asked of it afterwards.
  virtual void Leave(int rank) = 0;
  // RankRunner::faults.
  virtual int Faults(int rank) = 0;

  // Whether a rank can be killed and stopped as a process can.
  virtual bool mortal() const = 0;
  virtual void Kill(int rank) = 0;
  virtual void Stop(int rank) = 0;
};

// A formed group "stage 1" of epoch 7 whose members are called m0, m1, ...
std::unique_ptr<GroupHarness> MakeGroup(int size, int64_t timeout_ms);

// What every MakeGroup describes its ranks with.
GroupDescription TestGroup(int rank, int size);

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_GROUP_HARNESS_H_
