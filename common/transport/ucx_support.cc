#include "common/transport/ucx_support.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/stop_signal.h"

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
    // A killed peer behind shared memory is noticed within one interval (UCX: 20 s).
    {"UCX_KEEPALIVE_INTERVAL", "1s"},
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

}  // namespace

void PrepareUcxProcess() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const EnvironmentDefault& entry : kDefaults) {
      setenv(entry.name, entry.value, /*overwrite=*/0);
    }
    // A receiver that is killed while it reads the sender's memory (CMA) leaves about one in twenty
    // of UCX 1.13's sends without an end. Copying through the shared segment, none.
    if (AsksForSharedMemory()) setenv("UCX_RNDV_THRESH", "inf", /*overwrite=*/0);
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

}  // namespace baton
