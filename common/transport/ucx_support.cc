#include "common/transport/ucx_support.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/stop_signal.h"
#include "common/transport/data_plane.h"

namespace baton {
namespace {

struct EnvironmentDefault {
  const char* name;
  const char* value;
};

constexpr EnvironmentDefault kDefaults[] = {
    // With peer error handling UCX drops shared memory in favour of TCP loopback unless told that
    // shared memory may report errors too.
    {"UCX_MM_ERROR_HANDLING", "y"},
    // The 8 KiB segments of UCX halve the bandwidth of large messages.
    {"UCX_TCP_TX_SEG_SIZE", "64k"},
    {"UCX_TCP_RX_SEG_SIZE", "256k"},
    // A vanished host: 1 s of silence, then three probes.
    {"UCX_TCP_KEEPIDLE", "1s"},
    {"UCX_TCP_KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "3"},
    // The data thread connects, and serves everyone: the address of a deleted pod, to which packets
    // are dropped, would hold it up for two minutes.
    {"UCX_TCP_CONN_NB", "y"},
};

LogLevel LevelOf(ucs_log_level_t level) {
  if (level <= UCS_LOG_LEVEL_ERROR) return LogLevel::kError;
  if (level == UCS_LOG_LEVEL_WARN) return LogLevel::kWarning;
  return level == UCS_LOG_LEVEL_INFO ? LogLevel::kInfo : LogLevel::kDebug;
}

// UCX would write to stdout, which belongs to the program's output.
ucs_log_func_rc_t ForwardLog(const char* file, unsigned line, const char* /*function*/,
                             ucs_log_level_t level, const ucs_log_component_config_t* /*config*/,
                             const char* format, va_list arguments) {
  // A fatal one is followed by abort; UCX prints its backtrace itself.
  if (level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  char text[512];
  vsnprintf(text, sizeof(text), format, arguments);
  // Connections that break because everybody stops are no news.
  if (LogEnabled(LevelOf(level)) && !StopRequested()) {
    internal::LogMessage(LevelOf(level)).stream()
        << "ucx: " << text << " (" << file << ":" << line << ")";
  }
  return UCS_LOG_FUNC_RC_STOP;
}

// Whether UCX_TLS names shared memory; "^shm" names what to leave out.
bool AsksForSharedMemory() {
  const char* transports = getenv("UCX_TLS");
  if (transports == nullptr || transports[0] == '^') return false;
  const std::string_view names = transports;
  return names.find("shm") != names.npos || names.find("sysv") != names.npos ||
         names.find("posix") != names.npos;
}

std::optional<std::string_view> Variable(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

bool HasRdmaDevices() {
  std::error_code error;
  return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
}

}  // namespace

bool OnlyTcp(std::optional<std::string_view> transports, std::optional<std::string_view> devices,
             bool has_rdma_devices) {
  if (!transports.has_value()) return false;
  if (*transports != "^shm") return *transports == "tcp" || *transports == "tcp,self";
  // A port of an RDMA device is named with its number: "mlx5_0:1".
  if (devices.has_value() && *devices != "all") {
    return devices->find(':') == devices->npos;
  }
  return !has_rdma_devices;
}

bool MayRegisterMemory() {
  return !OnlyTcp(Variable("UCX_TLS"), Variable("UCX_NET_DEVICES"), HasRdmaDevices());
}

void PrepareUcxProcess() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const EnvironmentDefault& entry : kDefaults) {
      setenv(entry.name, entry.value, /*overwrite=*/0);
    }
    // A receiver that is killed while it reads the sender's memory (CMA) leaves about one in twenty
    // of UCX 1.13's sends without an end. Copying through the shared segment, none.
    if (AsksForSharedMemory()) setenv("UCX_RNDV_THRESH", "inf", /*overwrite=*/0);
    // A peer killed behind shared memory or RDMA is noticed within one interval (UCX: 20 s). TCP
    // reports it by itself, and UCX 1.13's keepalive over TCP can crash a peer that has stood
    // still (README, "Known limits").
    setenv("UCX_KEEPALIVE_INTERVAL", MayRegisterMemory() ? "1s" : "inf", /*overwrite=*/0);
    // Or UCX warns of ours for every transport that this machine lacks.
    if (getenv("UCX_WARN_UNUSED_ENV_VARS") == nullptr) {
      ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
    }
    ucs_log_push_handler(&ForwardLog);
  });
}

absl::Status UcxStatus(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_CANCELED:
      return absl::CancelledError(message);
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::UnimplementedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string LanesOf(ucp_ep_h endpoint) {
  // ucp_ep_query tells transports only from 1.14 on; this text exists in every version. Its lines
  // "lane[0]: 2:posix/memory.0 md[2] -> md[2]/posix am am_bw#0" are passed on, not interpreted.
  if (endpoint == nullptr) return "";
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "";
  ucp_ep_print_info(endpoint, stream);
  fclose(stream);
  std::vector<std::string> lanes;
  const std::vector<std::string> lines = absl::StrSplit(std::string(text, bytes), '\n');
  for (const std::string& line : lines) {
    const size_t start = line.find("lane[");
    if (start == std::string::npos) continue;
    std::string lane = line.substr(start);
    absl::RemoveExtraAsciiWhitespace(&lane);
    lanes.push_back(std::move(lane));
  }
  free(text);
  return absl::StrJoin(lanes, "; ");
}

}  // namespace baton
