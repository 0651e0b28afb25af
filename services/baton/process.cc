#include "services/baton/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/stdio_queue.h"
#include "common/base/stop_signal.h"
#include "common/net/host.h"

namespace baton {

std::string UtcText(int64_t unix_us) {
  const auto seconds = static_cast<time_t>(unix_us / 1'000'000);
  tm calendar{};
  char text[32] = "";
  if (gmtime_r(&seconds, &calendar) != nullptr) {
    (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &calendar);
  }
  return absl::StrFormat("%s.%03d UTC", text, unix_us / 1000 % 1000);
}

namespace {

constexpr int64_t kPollNanoseconds = 100'000'000;

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// As the logger would write it (common/base/log.h), past which it goes.
std::string DroppedLine(bool json, const std::string& process, uint64_t lines) {
  const std::string text = absl::StrCat(lines, lines == 1 ? " line" : " lines",
                                        " dropped: the output could not be written");
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  const std::string milliseconds = absl::StrFormat("%03d", now.tv_nsec / 1'000'000);
  const auto part = [&local](const char* format) {
    char written[40];
    return std::string(written, std::strftime(written, sizeof(written), format, &local));
  };
  if (!json) {
    return absl::StrCat(part("%Y-%m-%d %H:%M:%S."), milliseconds, " W ", process, " ", text, "\n");
  }
  const std::string zone = part("%z");  // +hhmm
  return absl::StrCat(
      R"({"time":")", part("%Y-%m-%dT%H:%M:%S."), milliseconds, zone.substr(0, 3), ":",
      zone.substr(3), R"(","level":"warning",)",
      JsonRecord(text, {{"process", process}, {"lines_dropped", static_cast<int64_t>(lines)}}),
      "}\n");
}

}  // namespace

void PrepareDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open takes the lowest number that is free, which is this one.
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
  }
  signal(SIGPIPE, SIG_IGN);
}

absl::Status QueueProcessOutput(const v1::Options& options, const std::string& name) {
  return QueueOutput([json = options.log_format() == "json", name](uint64_t lines) {
    return DroppedLine(json, name, lines);
  });
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kOutOfRange:
      return kExitPermanent;
    default:
      return kExitFailed;
  }
}

absl::Status PrepareProcess(const v1::Options& options, const std::string& name,
                            const std::vector<std::string>& notes) {
  BATON_RETURN_IF_ERROR(QueueProcessOutput(options, name));
  BATON_RETURN_IF_ERROR(SetLogFormat(options.log_format()));
  BATON_RETURN_IF_ERROR(InitLogging(options.log_level(), name));
  for (const std::string& note : notes) LOG(kInfo) << note;
  BATON_RETURN_IF_ERROR(ArmFailpoints(options.failpoints()));
  if (!options.failpoints().empty()) LOG(kWarning) << "failpoints armed: " << options.failpoints();
  // A thousand streams need more than the usual soft limit.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const sigset_t set = StopSignals();
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return absl::InternalError(absl::StrCat("pthread_sigmask: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

void BoundHeap(const HeapBounds& bounds) {
  mallopt(M_MMAP_THRESHOLD, bounds.own_mapping_bytes);
  mallopt(M_TRIM_THRESHOLD, bounds.kept_bytes);
}

absl::Status ResolveAddresses(v1::Options& options, bool worker) {
  const auto listen = net::ListenAddress(options.host());
  if (!listen.ok()) return InvalidField("host", std::string(listen.status().message()));
  options.set_host(*listen);
  if (!worker) {
    const auto cluster =
        options.cluster_host().empty() ? listen : net::ListenAddress(options.cluster_host());
    if (!cluster.ok()) return InvalidField("cluster_host", std::string(cluster.status().message()));
    options.set_cluster_host(*cluster);
  }
  if (!worker || !options.advertise_host().empty()) return absl::OkStatus();
  options.set_advertise_host(*listen);
  if (!net::IsUnspecified(*listen)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto routers, net::SplitHostPorts(options.router_address()));
  if (routers.empty()) {
    options.set_advertise_host(net::DefaultRouteSource(*listen));
    LOG(kInfo) << "listening on all addresses; peers are told " << options.advertise_host()
               << ", the address on the default route";
    return absl::OkStatus();
  }
  absl::Status no_route;
  for (const std::string& router : routers) {
    const auto source = net::RouteSource(*listen, router);
    if (source.ok()) {
      options.set_advertise_host(*source);
      LOG(kInfo) << "listening on all addresses; peers are told " << *source
                 << ", the address on the route to the router at " << router;
      return absl::OkStatus();
    }
    no_route = source.status();
  }
  return InvalidField("advertise_host", absl::StrCat("required: ", no_route.message()));
}

absl::StatusOr<std::shared_ptr<const rpc::ClusterSecurity>> SecureCluster(
    const v1::Options& options, rpc::PeerRole role) {
  // For an operator, --instance-id names the worker to drain, not the caller.
  const bool named = role != rpc::PeerRole::kOperator;
  return rpc::ClusterSecurity::Load({options.cluster_tls_cert(), options.cluster_tls_key(),
                                     options.cluster_tls_ca(), options.cluster_token_file()},
                                    {role, named ? options.instance_id() : ""});
}

std::string OpenListenerWarning(const std::string& host,
                                const std::shared_ptr<const rpc::ClusterSecurity>& security) {
  if (security != nullptr || net::IsLoopback(host)) return "";
  return absl::StrCat("the listener for the cluster's processes on ", host,
                      " does not authenticate its callers: any process that reaches it can join, "
                      "drain and read. Set "
                      "--cluster-tls-cert or --cluster-token-file (docs/security.md)");
}

EndOnSignal::EndOnSignal(int exit_code, std::string why) : done_fd_(eventfd(0, EFD_CLOEXEC)) {
  const sigset_t set = StopSignals();
  const int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  BATON_CHECK(done_fd_ >= 0 && signal_fd >= 0) << std::strerror(errno);
  thread_ = std::thread([this, signal_fd, exit_code, why = std::move(why)] {
    pthread_setname_np(pthread_self(), "baton-signal");
    pollfd fds[] = {{signal_fd, POLLIN, 0}, {done_fd_, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    // A signal that is not read here stays pending for WaitForStop.
    if (fds[1].revents == 0) {
      LOG(kInfo) << why;
      FlushOutput();
      std::_Exit(exit_code);
    }
    close(signal_fd);
  });
}

std::unique_ptr<EndOnSignal> EndOnSignal::WhileStarting() {
  return std::make_unique<EndOnSignal>(kExitDone, "stopping on a signal before the start is over");
}

std::unique_ptr<EndOnSignal> EndOnSignal::WhileDraining() {
  return std::make_unique<EndOnSignal>(kExitFailed, "ending at once, on a signal during the drain");
}

EndOnSignal::~EndOnSignal() {
  eventfd_write(done_fd_, 1);
  thread_.join();
  close(done_fd_);
}

void WaitForStop(const std::function<bool()>& ended) {
  const sigset_t set = StopSignals();
  const timespec poll{0, kPollNanoseconds};
  while (!ended()) {
    const int number = sigtimedwait(&set, nullptr, &poll);
    if (number <= 0) continue;
    NoteStopRequested();
    LOG(kInfo) << "stopping on " << (number == SIGINT ? "SIGINT" : "SIGTERM");
    return;
  }
}

absl::Status WriteOutput(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

std::string SecondsSince(int64_t start_us) {
  return absl::StrFormat("%.1f s", static_cast<double>(NowUs() - start_us) / 1e6);
}

}  // namespace baton
