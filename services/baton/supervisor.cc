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
#include "services/baton/child_pipes.h"

namespace baton {
namespace {

constexpr int kStartPollMs = 20;
constexpr int kPollMs = 1000;
// Reads from one child before other children and signals are handled.
constexpr int kReadsAtOnce = 16;

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

ChildEnd EndOf(int status, const ChildOutput& output) {
  ChildEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  end.last_words = output.last_words();
  return end;
}

}  // namespace

Supervisor::Supervisor(std::string executable, SupervisorLimits limits)
    : executable_(std::move(executable)), limits_(std::move(limits)) {
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
    if (child.output_fd >= 0) close(child.output_fd);
    if (child.report_fd >= 0) close(child.report_fd);
  }
  close(signal_fd_);
}

void Supervisor::Add(ChildSpec spec) {
  Child child;
  child.spec = std::move(spec);
  children_.push_back(std::move(child));
}

absl::Status Supervisor::Run(const SupervisorWatch& watch) {
  size_t name_width = 0;
  std::vector<std::string> names;
  for (const Child& child : children_) {
    names.push_back(child.spec.name);
    name_width = std::max(name_width, child.spec.name.size());
  }
  for (Child& child : children_) child.output.emplace(child.spec.name, name_width);
  core_.emplace(limits_, std::move(names));
  result_.reset();
  Perform(core_->Begin(NowUs()));
  while (!result_.has_value()) {
    const bool asked = WaitForEvents();
    for (size_t index = 0; index < children_.size(); ++index) ReadReport(index, watch);
    Reap(watch);
    if (asked) Perform(core_->OnStopSignal(NowUs()));
    stopping_ = stopping_ || asked;
    if (!stopping_) AskForNews(watch);
    Perform(core_->OnTime(NowUs()));
  }
  return *result_;
}

void Supervisor::AskForNews(const SupervisorWatch& watch) {
  StartNews news = watch.news();
  Print(news.lines);
  if (!core_->starting()) return;
  if (news.started) {
    core_->OnReady();
  } else {
    core_->OnWaiting(std::move(news.waiting_for));
  }
}

void Supervisor::Perform(const SupervisorActions& actions) {
  for (const SupervisorAction& action : actions) {
    if (const auto* start = std::get_if<StartChild>(&action)) {
      const absl::Status status = Start(start->child);
      if (!status.ok()) {
        Perform(core_->OnStartFailed(start->child, std::string(status.message()), NowUs()));
      }
    } else if (std::holds_alternative<TermChildren>(action)) {
      TermAll();
    } else if (const auto* victim = std::get_if<KillChild>(&action)) {
      const pid_t pid = children_[victim->child].pid;
      if (pid > 0) kill(pid, SIGKILL);
    } else if (const auto* tell = std::get_if<TellOfChild>(&action)) {
      Print({children_[tell->child].output->Label(tell->text)});
    } else if (const auto* finish = std::get_if<Finish>(&action)) {
      result_ = finish->status;
    }
  }
}

// One call reaches the whole group. One signal after the other would let a child that got its own
// wake up, leave, and be missed by another one before that one's turn.
void Supervisor::TermAll() const {
  if (group_ > 0) kill(-group_, SIGTERM);
  for (const Child& child : children_) {
    if (child.pid > 0 && getpgid(child.pid) != group_) kill(child.pid, SIGTERM);
  }
}

absl::Status Supervisor::Start(size_t index) {
  Child& child = children_[index];
  int ends[2];
  int report[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  if (pipe2(report, O_CLOEXEC | O_NONBLOCK) != 0) {
    const int error = errno;
    for (const int end : ends) close(end);
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(error)));
  }
  std::vector<std::string> arguments = {"baton"};
  arguments.insert(arguments.end(), child.spec.arguments.begin(), child.spec.arguments.end());
  const std::vector<char*> argv = Pointers(arguments);
  // First: of a name that is there twice the first one counts.
  std::vector<std::string> variables = {absl::StrCat(kReportVariable, "=", report[1])};
  variables.insert(variables.end(), child.spec.environment.begin(), child.spec.environment.end());
  const std::vector<char*> environment = Pointers(variables);
  const pid_t parent = getpid();
  // A group ends with its last member.
  if (group_ > 0 && kill(-group_, 0) != 0) group_ = 0;
  const pid_t group = group_;
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls until exec.
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // End with a supervisor that is killed.
    if (getppid() != parent) _exit(1);
    // Ctrl-C reaches the supervisor alone, which then stops the children. The parent does the same:
    // whichever is first, the group exists before the next child and before exec.
    if (setpgid(0, group) != 0) setpgid(0, 0);
    const sigset_t set = Signals();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    fcntl(report[1], F_SETFD, 0);
    execve(executable_.c_str(), argv.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  close(report[1]);
  if (pid < 0) {
    close(ends[0]);
    close(report[0]);
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  setpgid(pid, group);
  if (group_ == 0) group_ = pid;
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (child.output_fd >= 0) close(child.output_fd);
  if (child.report_fd >= 0) close(child.report_fd);
  child.pid = pid;
  child.output_fd = ends[0];
  child.report_fd = report[0];
  return absl::OkStatus();
}

void Supervisor::Print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  if (!lines.empty()) std::fflush(stdout);
}

// A report is one write of a few bytes, which a pipe keeps together.
void Supervisor::ReadReport(size_t index, const SupervisorWatch& watch) {
  Child& child = children_[index];
  char buffer[64];
  const ssize_t got = child.report_fd < 0 ? -1 : read(child.report_fd, buffer, sizeof(buffer));
  if (got < 0) return;  // Nothing yet.
  close(std::exchange(child.report_fd, -1));
  const auto incarnation = ParseListening({buffer, static_cast<size_t>(got)});
  if (!incarnation.has_value()) return;  // It has ended, or never reports.
  if (watch.on_incarnation) watch.on_incarnation(child.spec.name, *incarnation);
  Perform(core_->OnListening(index, NowUs()));
}

void Supervisor::ReadOutput(Child& child) {
  char buffer[4096];
  for (int reads = 0; child.output_fd >= 0 && reads < kReadsAtOnce; ++reads) {
    const ssize_t got = read(child.output_fd, buffer, sizeof(buffer));
    if (got < 0) return;  // Nothing more now.
    if (got == 0) {
      close(std::exchange(child.output_fd, -1));
      Print(child.output->End());
      return;
    }
    Print(child.output->Take({buffer, static_cast<size_t>(got)}));
  }
}

void Supervisor::Reap(const SupervisorWatch& watch) {
  for (size_t index = 0; index < children_.size(); ++index) {
    Child& child = children_[index];
    int status = 0;
    if (child.pid <= 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.pid = -1;
    ReadOutput(child);  // Its last words are in the pipe.
    if (watch.on_incarnation) watch.on_incarnation(child.spec.name, 0);
    Perform(core_->OnEnded(index, EndOf(status, *child.output), NowUs()));
  }
}

bool Supervisor::WaitForEvents() {
  std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
  // -1 is skipped.
  for (const Child& child : children_) {
    fds.push_back({child.output_fd, POLLIN, 0});
    fds.push_back({child.report_fd, POLLIN, 0});
  }
  int64_t timeout_ms = core_->starting() ? kStartPollMs : kPollMs;
  if (core_->NextTimeUs() != SupervisorCore::kNever) {
    timeout_ms = std::clamp<int64_t>((core_->NextTimeUs() - NowUs() + 999) / 1000, 0, timeout_ms);
  }
  poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
  for (Child& child : children_) ReadOutput(child);
  bool stop = false;
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    stop = stop || info.ssi_signo != SIGCHLD;
  }
  return stop;
}

}  // namespace baton
