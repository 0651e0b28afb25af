#include "common/transport/ucx_worker.h"

#include <utility>

#include "common/base/status.h"

namespace baton {

absl::Status UcxWorker::Open(ucp_context_h context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  return UcxStatus(ucp_worker_create(context, &params, &worker_), "data plane: worker");
}

absl::StatusOr<std::string> UcxWorker::Address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_address(worker_, &address, &bytes), "data plane: worker address"));
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

absl::StatusOr<int> UcxWorker::Descriptor() const {
  int descriptor = -1;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_efd(worker_, &descriptor), "data plane: worker descriptor"));
  return descriptor;
}

void UcxWorker::Close() {
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
}

}  // namespace baton
