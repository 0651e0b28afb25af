// What a supervisor of child processes decides: when to start a child again and when to give up,
// what a signal means, when the end has come. A state machine without processes or a clock: events
// go in with the time, actions come out; supervisor.h performs them.
#ifndef SERVICES_BATON_SUPERVISOR_CORE_H_
#define SERVICES_BATON_SUPERVISOR_CORE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace baton {

struct SupervisorLimits {
  int64_t start_timeout_us = 0;          // From Begin to OnReady; 0: none.
  int64_t stop_timeout_us = 15'000'000;  // From SIGTERM to SIGKILL.
  int64_t first_restart_us = 500'000;    // Pause before a child is started again, doubled each time
  int64_t longest_restart_us = 8'000'000;  // up to this.
  int64_t stable_us = 30'000'000;          // A life this long forgets earlier deaths.
  int restarts_in_a_row = 5;  // A child that dies once more is given up, and all with it.
  // So many of the first children have to listen before the others are started; 0: none has to.
  size_t leaders = 0;
  std::vector<int> permanent_exit_codes;        // A child that ends with one is not started again.
  std::string until = "the cluster was ready";  // What OnReady means, for messages.
};

// How a process ended.
struct ChildEnd {
  int exit_code = 0;
  int signal = 0;          // Not 0: ended by it, and exit_code means nothing.
  std::string last_words;  // The last line that it wrote; may be empty.
};

struct StartChild {
  size_t child;
};
// SIGTERM to all that run, at the same moment: none may see another leave before it knows why.
struct TermChildren {};
struct KillChild {
  size_t child;
};
// A line for the user, under the child's name.
struct TellOfChild {
  size_t child;
  std::string text;
};
// All children have ended; nothing follows.
struct Finish {
  absl::Status status;
};
using SupervisorAction = std::variant<StartChild, TermChildren, KillChild, TellOfChild, Finish>;
using SupervisorActions = std::vector<SupervisorAction>;

// Time is in microseconds of one monotonic clock and never runs backwards.
class SupervisorCore {
 public:
  // Children are known by their place in `names`.
  SupervisorCore(SupervisorLimits limits, std::vector<std::string> names);

  // Starts the leaders, or all if there are none. Once, first.
  SupervisorActions Begin(int64_t now_us);
  // A child has said that it listens. When the last leader has, the others are started.
  SupervisorActions OnListening(size_t child, int64_t now_us);
  // A child could not be started at all.
  SupervisorActions OnStartFailed(size_t child, const std::string& reason, int64_t now_us);
  SupervisorActions OnEnded(size_t child, const ChildEnd& end, int64_t now_us);
  // What the children make up is ready: from now on a death is made good by another start.
  void OnReady();
  // What OnReady waits for, for the message of a timeout.
  void OnWaiting(std::string what) { waiting_for_ = std::move(what); }
  // The user wants the end; the second time at once.
  SupervisorActions OnStopSignal(int64_t now_us);
  SupervisorActions OnTime(int64_t now_us);

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // When OnTime has something to do.
  int64_t NextTimeUs() const;
  bool starting() const { return phase_ == Phase::kStarting; }

 private:
  enum class Phase { kStarting, kServing, kStopping, kFinished };
  struct Child {
    std::string name;
    bool running = false;
    bool listening = false;
    int deaths_in_a_row = 0;
    int64_t started_us = 0;
    int64_t restart_us = kNever;
  };

  void Start(size_t child, int64_t now_us, SupervisorActions& actions);
  void DecideOnRestart(size_t child, const ChildEnd& end, int64_t now_us,
                       SupervisorActions& actions);
  // Ends all with `status`; the first status stays.
  void Stop(absl::Status status, int64_t now_us, SupervisorActions& actions);
  // What a start waits for before OnWaiting has told.
  std::string FirstMissing() const;
  void KillAll(const std::string& why, SupervisorActions& actions);
  void FinishIfAlone(SupervisorActions& actions);

  const SupervisorLimits limits_;
  std::vector<Child> children_;
  Phase phase_ = Phase::kStarting;
  bool all_started_ = false;  // At least once.
  int64_t start_deadline_us_ = kNever;
  int64_t kill_us_ = kNever;
  std::string waiting_for_;
  absl::Status result_;
};

// "ended with exit code 3", "was ended by signal 9 (Killed)".
std::string Describe(const ChildEnd& end);

}  // namespace baton

#endif  // SERVICES_BATON_SUPERVISOR_CORE_H_
