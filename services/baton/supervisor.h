// Runs child processes side by side: performs what the core (supervisor_core.h) decides, puts their
// names before the lines of their output, and stops them all together.
#ifndef SERVICES_BATON_SUPERVISOR_H_
#define SERVICES_BATON_SUPERVISOR_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/baton/child_output.h"
#include "services/baton/supervisor_core.h"

namespace baton {

struct ChildSpec {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // NAME=value, complete.
};

// Whether what the children make up is ready. Asked about every 20 ms until it is; answers at once.
struct StartWatch {
  std::function<bool()> ready;
  std::function<std::string()> waiting_for;  // For people.
  // Lines for people that have come up since it was asked last; asked until a signal, after the
  // start once a second. May be null.
  std::function<std::vector<std::string>()> news;
  // A child of that name says that it listens, as this incarnation (start_report.h); 0: it has
  // ended. May be null.
  std::function<void(const std::string& name, uint64_t incarnation)> on_incarnation;
};

// One thread; blocks SIGINT, SIGTERM and SIGCHLD for the process from construction on.
class Supervisor {
 public:
  // `executable`: what every child runs.
  Supervisor(std::string executable, SupervisorLimits limits);
  ~Supervisor();  // Kills what still runs.
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void Add(ChildSpec spec);

  // Starts all children and serves them until SIGINT or SIGTERM (OK), or until one of them can't
  // be helped (its reason); calls `on_ready` once when `watch` says so. No child is left on return.
  absl::Status Run(const StartWatch& watch, const std::function<void()>& on_ready);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;
    int output_fd = -1;  // Read end of its standard output and error.
    int report_fd = -1;  // Read end of the pipe that it reports by.
    std::optional<ChildOutput> output;
  };

  void Perform(const SupervisorActions& actions);
  absl::Status Start(size_t index);
  void TermAll() const;
  void Reap(const StartWatch& watch);
  void ReadOutput(Child& child);
  void ReadReport(size_t index, const StartWatch& watch);
  static void Print(const std::vector<std::string>& lines);
  bool WaitForEvents();  // True when asked to stop.

  const std::string executable_;
  const SupervisorLimits limits_;
  std::vector<Child> children_;
  std::optional<SupervisorCore> core_;
  std::optional<absl::Status> result_;
  int signal_fd_ = -1;
  pid_t group_ = 0;  // The children's process group; 0 until the first one is started.
};

}  // namespace baton

#endif  // SERVICES_BATON_SUPERVISOR_H_
