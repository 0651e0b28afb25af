// `baton up`: a local cluster. Plans the processes and their ports; the supervisor runs them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/process_input.h"
#include "common/preflight/preflight.h"
#include "services/baton/commands.h"
#include "services/baton/supervisor.h"

namespace baton {
namespace {

using Role = config::Role;
using v1::OptionSpec;

constexpr int kStopMs = 15'000;

// A TCP socket on loopback, closed at the end of its scope.
class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

sockaddr_in Loopback(int64_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// `wanted`, or a port that is free now: the children must know each other's ports before they
// start.
absl::StatusOr<int64_t> ChoosePort(int64_t wanted) {
  if (wanted != 0) return wanted;
  const Socket probe;
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(probe.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(probe.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return absl::UnavailableError("no free port on 127.0.0.1");
  }
  return ntohs(address.sin_port);
}

// Whether the router's GET /readiness answers 200; any failure is "not yet".
bool Ready(int64_t port) {
  const Socket connection;
  const timeval timeout{1, 0};
  setsockopt(connection.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const sockaddr_in address = Loopback(port);
  if (connect(connection.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return false;
  }
  const std::string request =
      "GET /readiness HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (send(connection.fd(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return false;
  char reply[64] = {};
  const ssize_t got = recv(connection.fd(), reply, sizeof(reply) - 1, 0);
  return got > 12 && absl::StartsWith(std::string(reply, static_cast<size_t>(got)), "HTTP/1.1 200");
}

void AddOption(std::vector<std::string>& arguments, const std::string& name,
               const std::string& value) {
  arguments.push_back(absl::StrCat("--", name, "=", value));
}

// Of one worker when --threads does not say: the machine's cores shared among all of them.
int64_t ThreadsPerWorker(const v1::Options& options) {
  const int64_t workers = options.prefill_chains() * options.pp_size() + options.decodes();
  return std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN) / workers);
}

void AddWorkers(const config::ParsedOptions& options, const PreflightReport& checked,
                const std::string& router_address, Supervisor& supervisor) {
  const std::vector<std::string> environment = config::ProcessEnvironment();
  const auto add = [&](Role role, const std::string& name, std::vector<std::string> own) {
    ChildSpec spec;
    spec.name = name;
    spec.arguments = {"worker"};
    AddOption(spec.arguments, "disaggregation-mode", config::RoleName(role));
    AddOption(spec.arguments, "router-address", router_address);
    AddOption(spec.arguments, "instance-id", name);
    spec.arguments.insert(spec.arguments.end(), own.begin(), own.end());
    for (std::string& argument : config::ChildArguments(options, role)) {
      spec.arguments.push_back(std::move(argument));
    }
    // After the parent's own: of a flag given twice the last one counts.
    AddOption(spec.arguments, "grpc-port", "0");
    for (std::string& argument : PlannedArguments(checked)) {
      spec.arguments.push_back(std::move(argument));
    }
    if (options.values.threads() == 0) {
      AddOption(spec.arguments, "threads", absl::StrCat(ThreadsPerWorker(options.values)));
    }
    spec.environment = config::ChildEnvironment(options, role, environment);
    supervisor.Add(std::move(spec));
  };
  for (int64_t chain = 0; chain < options.values.prefill_chains(); ++chain) {
    for (int64_t stage = 0; stage < options.values.pp_size(); ++stage) {
      std::vector<std::string> own;
      AddOption(own, "chain-id", absl::StrCat("chain-", chain));
      AddOption(own, "pp-rank", absl::StrCat(stage));
      add(OptionSpec::PREFILL, absl::StrCat("prefill-", chain, "-", stage), std::move(own));
    }
  }
  for (int64_t decode = 0; decode < options.values.decodes(); ++decode) {
    add(OptionSpec::DECODE, absl::StrCat("decode-", decode), {});
  }
}

absl::Status Up(const config::ParsedOptions& options, const char* self) {
  const PreflightReport checked = Preflight(options, ReadMachine());
  for (const Finding& finding : checked.findings) {
    if (finding.refuses()) continue;
    std::fprintf(stderr, "baton up: warning: %s\n", FindingText(finding).c_str());
  }
  BATON_RETURN_IF_ERROR(checked.status());
  BATON_ASSIGN_OR_RETURN(const int64_t http_port, ChoosePort(options.values.port()));
  BATON_ASSIGN_OR_RETURN(const int64_t grpc_port, ChoosePort(options.values.grpc_port()));
  Supervisor supervisor(self);
  ChildSpec router;
  router.name = "router";
  router.arguments = {"router"};
  for (std::string& argument : config::ChildArguments(options, OptionSpec::ROUTER)) {
    router.arguments.push_back(std::move(argument));
  }
  // After the parent's own: of a flag given twice the last one counts.
  AddOption(router.arguments, "port", absl::StrCat(http_port));
  AddOption(router.arguments, "grpc-port", absl::StrCat(grpc_port));
  router.environment =
      config::ChildEnvironment(options, OptionSpec::ROUTER, config::ProcessEnvironment());
  supervisor.Add(std::move(router));
  AddWorkers(options, checked, absl::StrCat("127.0.0.1:", grpc_port), supervisor);

  const std::string host = options.values.host();
  const int64_t start_us = NowUs();
  return supervisor.Run(
      [&] {
        if (!Ready(http_port)) return false;
        std::printf("cluster ready: http=%s:%lld grpc=%s:%lld after %.1f s\n", host.c_str(),
                    static_cast<long long>(http_port), host.c_str(),
                    static_cast<long long>(grpc_port),
                    static_cast<double>(NowUs() - start_us) / 1e6);
        std::fflush(stdout);
        return true;
      },
      kStopMs);
}

}  // namespace

int RunUpCommand(const config::ParsedOptions& options, const char* self) {
  const absl::Status status = Up(options, self);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton up: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace baton
