// One UCX worker of a data plane. A plane has two, since UCX pairs the endpoints of two workers by
// counting them, whichever side has opened them (README, "Two workers"). Data thread only.
#ifndef COMMON_TRANSPORT_UCX_WORKER_H_
#define COMMON_TRANSPORT_UCX_WORKER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/ucx_support.h"

namespace baton {

class UcxWorker {
 public:
  UcxWorker() = default;
  ~UcxWorker() { Close(); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  absl::Status Open(ucp_context_h context);
  ucp_worker_h handle() const { return worker_; }

  // As UCX writes it.
  absl::StatusOr<std::string> Address() const;
  // What to wait for after Arm.
  absl::StatusOr<int> Descriptor() const;

  // Whether there was anything to do.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  // False: something has come in between. It must be progressed first.
  bool Arm() { return ucp_worker_arm(worker_) != UCS_ERR_BUSY; }

  // Destroys the worker; UCX asserts that nothing is left on it.
  void Close();
  // Leaves it undestroyed, for the end of the process.
  void Leave() { worker_ = nullptr; }

 private:
  ucp_worker_h worker_ = nullptr;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_UCX_WORKER_H_
