// What the tests of every communicator have its ranks do: commands with inputs that follow from a
// seed, and what must come of them by a plain loop.
#ifndef COMMON_COLLECTIVE_TESTING_RANK_RUNNER_H_
#define COMMON_COLLECTIVE_TESTING_RANK_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/collective/communicator.h"

namespace baton::testing {

struct Command {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t count = 1;  // Elements that each rank gives: an all-gather's shard, another's tensor.
  ElementType type = ElementType::kFloat32;
  int peer = 0;
  uint64_t seed = 1;
  int64_t skip = 0;  // Elements of the seed's numbers that come before the tensor's first.
  int64_t lead = 0;  // Bytes before the tensor in its memory, so that its alignment varies.

  // In one line, for a process's standard input.
  std::string ToText() const;
  static Command FromText(const std::string& text);
};

struct Outcome {
  absl::Status status;
  uint64_t hash = 0;  // The output's, if the status is OK.
};

// In one line: "0 HASH" or "CODE RANK MESSAGE".
std::string ToText(const Outcome& outcome);
Outcome OutcomeFromText(const std::string& text);

// `rank`'s input, and the output that a plain loop over all ranks' inputs gives.
std::vector<std::byte> InputOf(const Command& command, int rank);
std::vector<std::byte> ExpectedOutput(const Command& command, int size);
uint64_t HashOf(const std::vector<std::byte>& bytes);

// Carries commands out on one communicator, keeping their tensors until they are done. Any thread.
class RankRunner {
 public:
  explicit RankRunner(Communicator* communicator) : communicator_(communicator) {}

  void Submit(const Command& command);
  // The outcome of the oldest command that has not been taken, once it is done.
  std::optional<Outcome> TryTake();
  Outcome Take();  // Blocks.
  // How often a command was done beyond once, or before an older one.
  int faults();

 private:
  struct Job {
    Command command;
    std::vector<std::byte> input;
    std::vector<std::byte> output;
    std::optional<absl::Status> status;
  };
  void Finish(Job* job, uint64_t number, absl::Status status);
  Outcome TakeFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Communicator* const communicator_;
  Mutex mutex_;
  std::deque<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  int faults_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_RANK_RUNNER_H_
