#include "services/baton/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"

namespace baton {
namespace {

constexpr int kPollMs = 100;
constexpr int64_t kFirstRestartUs = 500'000;
constexpr int64_t kLongestRestartUs = 8'000'000;
constexpr int64_t kStableUs = 30'000'000;         // A life this long forgets earlier deaths.
constexpr size_t kLineLimit = size_t{16} * 1024;  // A longer line is cut into several.

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, number);
  return set;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::string Ending(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was ended by signal ", WTERMSIG(status));
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

Supervisor::Supervisor(std::string executable) : executable_(std::move(executable)) {
  const sigset_t set = Signals();
  BATON_CHECK(sigprocmask(SIG_BLOCK, &set, nullptr) == 0) << std::strerror(errno);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  BATON_CHECK(signal_fd_ >= 0) << std::strerror(errno);
}

Supervisor::~Supervisor() {
  for (Child& child : children_) {
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    if (child.output >= 0) close(child.output);
  }
  close(signal_fd_);
}

void Supervisor::Add(ChildSpec spec) {
  name_width_ = std::max(name_width_, spec.name.size());
  Child child;
  child.spec = std::move(spec);
  children_.push_back(std::move(child));
}

absl::Status Supervisor::Start(Child& child) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  std::vector<std::string> arguments = {"baton"};
  arguments.insert(arguments.end(), child.spec.arguments.begin(), child.spec.arguments.end());
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> environment = Pointers(child.spec.environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls until exec.
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // Nobody survives a supervisor that was killed.
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);  // Ctrl-C reaches the supervisor alone, which then stops the children in order.
    const sigset_t set = Signals();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve(executable_.c_str(), argv.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (child.output >= 0) close(child.output);
  child.pid = pid;
  child.output = ends[0];
  child.started_us = NowUs();
  child.restart_us = 0;
  return absl::OkStatus();
}

void Supervisor::PrintLine(const Child& child, const std::string& line) const {
  std::printf("%-*s | %s\n", static_cast<int>(name_width_), child.spec.name.c_str(), line.c_str());
  std::fflush(stdout);
}

void Supervisor::ReadOutput(Child& child) {
  char buffer[4096];
  while (child.output >= 0) {
    const ssize_t got = read(child.output, buffer, sizeof(buffer));
    if (got < 0) return;  // Nothing more now.
    if (got == 0) {
      close(std::exchange(child.output, -1));
      if (!child.partial_line.empty()) PrintLine(child, std::exchange(child.partial_line, ""));
      return;
    }
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n' && child.partial_line.size() < kLineLimit) {
        child.partial_line.push_back(buffer[i]);
        continue;
      }
      PrintLine(child, std::exchange(child.partial_line, ""));
    }
  }
}

absl::Status Supervisor::Reap(bool starting_up) {
  absl::Status first_error;
  for (Child& child : children_) {
    int status = 0;
    if (child.pid <= 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.pid = -1;
    ReadOutput(child);
    const std::string ending = Ending(status);
    if (starting_up) {
      if (first_error.ok()) {
        first_error = absl::InternalError(absl::StrCat(
            child.spec.name, " ", ending, " before the cluster was ready; its log above says why"));
      }
      continue;
    }
    const int64_t now_us = NowUs();
    if (now_us - child.started_us > kStableUs) child.restarts = 0;
    const int64_t pause_us =
        std::min(kLongestRestartUs, kFirstRestartUs << std::min(child.restarts, 4));
    ++child.restarts;
    child.restart_us = now_us + pause_us;
    PrintLine(child, absl::StrCat(ending, "; starting it again in ", pause_us / 1000, " ms"));
  }
  return first_error;
}

absl::Status Supervisor::RestartDue() {
  for (Child& child : children_) {
    if (child.restart_us == 0 || NowUs() < child.restart_us) continue;
    if (absl::Status status = Start(child); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool Supervisor::WaitForEvents(int timeout_ms) {
  std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
  for (const Child& child : children_) fds.push_back({child.output, POLLIN, 0});  // -1 is skipped.
  poll(fds.data(), fds.size(), timeout_ms);
  for (Child& child : children_) ReadOutput(child);
  bool stop = false;
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    stop = stop || info.ssi_signo != SIGCHLD;
  }
  return stop;
}

bool Supervisor::AnyRunning() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.pid > 0; });
}

void Supervisor::StopAll(int stop_ms) {
  for (const Child& child : children_) {
    if (child.pid > 0) kill(child.pid, SIGTERM);
  }
  const int64_t deadline_us = NowUs() + int64_t{stop_ms} * 1000;
  while (AnyRunning() && NowUs() < deadline_us) {
    WaitForEvents(kPollMs);
    // Ends during the stop are expected: only their state counts.
    for (Child& child : children_) {
      if (child.pid > 0 && waitpid(child.pid, nullptr, WNOHANG) == child.pid) child.pid = -1;
    }
  }
  for (Child& child : children_) {
    ReadOutput(child);
    if (child.pid <= 0) continue;
    PrintLine(child, absl::StrCat("did not stop within ", stop_ms, " ms and is killed"));
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    child.pid = -1;
  }
}

absl::Status Supervisor::Run(const std::function<bool()>& on_poll, int stop_ms) {
  absl::Status result;
  for (Child& child : children_) {
    result = Start(child);
    if (!result.ok()) break;
  }
  bool starting_up = true;
  int64_t next_poll_us = 0;
  while (result.ok()) {
    if (WaitForEvents(kPollMs)) break;
    result = Reap(starting_up);
    if (result.ok()) result = RestartDue();
    if (!result.ok() || !starting_up || NowUs() < next_poll_us) continue;
    next_poll_us = NowUs() + int64_t{kPollMs} * 1000;
    if (on_poll()) starting_up = false;
  }
  StopAll(stop_ms);
  return result;
}

}  // namespace baton
