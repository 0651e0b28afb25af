// RouterShell's leaving: the core decides, this asks it until nothing is left.
#include "common/base/log.h"
#include "services/router/router_shell.h"

namespace baton::router {

void RouterShell::BeginDrain(int64_t settle_ms, int64_t timeout_ms) {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    readiness_ = {false, "the router is draining"};
  }
  const bool posted = loop_.PostCompletion([this, settle_ms, timeout_ms] {
    Dispatch(RouterDrainBegan{settle_ms * 1000, timeout_ms * 1000});
  });
  if (!posted) {
    LOG(kDebug) << "a drain begins after the end";
  }
}

bool RouterShell::AwaitDrained(int64_t limit_ms) {
  return loop_.Await([this] { return core_.drain(NowUs()) == RouterDrain::kDrained; }, limit_ms);
}

RouterLoad RouterShell::load() {
  RouterLoad load;
  loop_.Await(
      [this, &load] {
        load = core_.load();
        return true;
      },
      0);
  return load;
}

}  // namespace baton::router
