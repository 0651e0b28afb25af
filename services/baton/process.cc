#include "services/baton/process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int64_t kPollNanoseconds = 100'000'000;

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

absl::Status PrepareProcess(const v1::Options& options, const std::string& name) {
  BATON_RETURN_IF_ERROR(InitLogging(options.log_level(), name));
  BATON_RETURN_IF_ERROR(ArmFailpoints(options.failpoints()));
  if (!options.failpoints().empty()) LOG(kWarning) << "failpoints armed: " << options.failpoints();
  // A thousand streams need more than the usual soft limit.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  signal(SIGPIPE, SIG_IGN);
  const sigset_t set = StopSignals();
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return absl::InternalError(absl::StrCat("pthread_sigmask: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

void WaitForStop(const std::function<bool()>& ended) {
  const sigset_t set = StopSignals();
  const timespec poll{0, kPollNanoseconds};
  while (!ended()) {
    const int number = sigtimedwait(&set, nullptr, &poll);
    if (number <= 0) continue;
    LOG(kInfo) << "stopping on " << (number == SIGINT ? "SIGINT" : "SIGTERM");
    return;
  }
}

std::string SecondsSince(int64_t start_us) {
  return absl::StrFormat("%.1f s", static_cast<double>(NowUs() - start_us) / 1e6);
}

}  // namespace baton
