// Runs child processes side by side: performs what the core (supervisor_core.h) decides, puts their
// names before the lines of their output, and stops them all together.
#ifndef SERVICES_BATON_SUPERVISOR_H_
#define SERVICES_BATON_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/baton/child_pipes.h"
#include "services/baton/supervisor_core.h"

namespace baton {

struct ChildSpec {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // NAME=value, complete.
};

// How far what the children make up has come.
struct StartNews {
  bool started = false;            // From now on a child that dies is started again.
  std::string waiting_for;         // For people.
  std::vector<std::string> lines;  // For people: what has come up since it was asked last.
};

struct SupervisorWatch {
  // Answers at once. Asked every 20 ms until it has started, then once a second.
  std::function<StartNews()> news;
  // A child of that name says that it listens, as this incarnation (child_pipes.h); 0: it has
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
  // be helped (its reason). No child is left on return.
  absl::Status Run(const SupervisorWatch& watch);

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
  void AskForNews(const SupervisorWatch& watch);
  void Reap(const SupervisorWatch& watch);
  void ReadOutput(Child& child);
  void ReadReport(size_t index, const SupervisorWatch& watch);
  static void Print(const std::vector<std::string>& lines);
  bool WaitForEvents();  // True when asked to stop.

  const std::string executable_;
  const SupervisorLimits limits_;
  std::vector<Child> children_;
  std::optional<SupervisorCore> core_;
  std::optional<absl::Status> result_;
  bool stopping_ = false;  // On a signal.
  int signal_fd_ = -1;
  pid_t group_ = 0;  // The children's process group; 0 until the first one is started.
};

}  // namespace baton

#endif  // SERVICES_BATON_SUPERVISOR_H_
