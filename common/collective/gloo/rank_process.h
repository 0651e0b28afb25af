// test_rank processes and the rendezvous between them.
#ifndef COMMON_COLLECTIVE_GLOO_RANK_PROCESS_H_
#define COMMON_COLLECTIVE_GLOO_RANK_PROCESS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/base/testing/child_process.h"
#include "common/collective/testing/local_wiring.h"
#include "common/collective/testing/rank_runner.h"

namespace baton::testing {

class RankProcess {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int64_t operation_timeout_ms = 60'000;
    int64_t form_timeout_ms = 60'000;
  };

  // Starts it and has it join epoch 7 at `wiring`, which must outlive it.
  RankProcess(const Options& options, LocalWiring* wiring);
  ~RankProcess();  // Kills.

  // Waits until it is in the group, or has failed to be.
  absl::Status AwaitFormed();
  void Say(const std::string& line);
  // Waits for the next "done" or "faults" and returns what follows it.
  std::string Next();
  void Signal(int signal) const { child_.Signal(signal); }

 private:
  void Read();
  void Hear(const std::string& line);

  const Options options_;
  LocalWiring* const wiring_;
  ChildProcess child_;
  Mutex write_mutex_;
  Mutex mutex_;
  bool decided_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status formed_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::string> answers_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
};

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_GLOO_RANK_PROCESS_H_
