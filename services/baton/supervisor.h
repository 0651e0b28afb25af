// Runs child processes side by side: starts them, puts their names before the lines of their logs,
// starts those that die again with growing pauses, and stops them all together.
#ifndef SERVICES_BATON_SUPERVISOR_H_
#define SERVICES_BATON_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

struct ChildSpec {
  std::string name;  // Stands before every line of its log.
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // NAME=value, complete.
};

// One thread; blocks SIGINT, SIGTERM and SIGCHLD for the process from construction on.
class Supervisor {
 public:
  // `executable`: what every child runs.
  explicit Supervisor(std::string executable);
  ~Supervisor();  // Kills what still runs.
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void Add(ChildSpec spec);

  // Starts all children and serves them until SIGINT or SIGTERM, then stops them (SIGTERM, after
  // `stop_ms` SIGKILL) and returns OK. `on_poll` is called about every 100 ms while it returns
  // false; when it returns true, start-up is over. A child that ends before that is an error, since
  // its log says why; one that ends later is started again.
  absl::Status Run(const std::function<bool()>& on_poll, int stop_ms);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;
    int output = -1;           // Read end of its standard output and error.
    std::string partial_line;  // Read, not yet ended by a newline.
    int restarts = 0;
    int64_t started_us = 0;
    int64_t restart_us = 0;  // When to start it again; 0: running.
  };

  absl::Status Start(Child& child);
  absl::Status Reap(bool starting_up);
  void ReadOutput(Child& child);
  void PrintLine(const Child& child, const std::string& line) const;
  absl::Status RestartDue();
  bool WaitForEvents(int timeout_ms);  // True when asked to stop.
  void StopAll(int stop_ms);
  bool AnyRunning() const;

  const std::string executable_;
  std::vector<Child> children_;
  int signal_fd_ = -1;
  size_t name_width_ = 0;
};

}  // namespace baton

#endif  // SERVICES_BATON_SUPERVISOR_H_
