// What Baton needs of UCX's surroundings: its environment, its log, its status codes, its words for
// an endpoint.
#ifndef COMMON_TRANSPORT_UCX_SUPPORT_H_
#define COMMON_TRANSPORT_UCX_SUPPORT_H_

#include <ucp/api/ucp.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Sets Baton's defaults where the user has set nothing, and sends UCX's log lines to ours. Must
// come before ucp_init, which reads the environment; does its work once per process.
void PrepareUcxProcess();

// Whether peers can be reached over TCP alone, by UCX_TLS and UCX_NET_DEVICES.
bool OnlyTcp(std::optional<std::string_view> transports, std::optional<std::string_view> devices,
             bool has_rdma_devices);

// `what: UCX's text`. Whatever says that a peer can't be reached or is gone is UNAVAILABLE.
absl::Status UcxStatus(ucs_status_t status, const char* what);

// Which transports UCX has chosen for an endpoint, in its words; empty: it can't be told.
std::string LanesOf(ucp_ep_h endpoint);

// A gather or scatter list as UCX wants it: no empty runs, and one run is plain contiguous memory,
// which takes UCX's short cuts.
class UcxBuffer {
 public:
  void Append(void* data, size_t bytes) {
    if (bytes != 0) runs_.push_back({data, bytes});
  }
  ucp_datatype_t datatype() const {
    return contiguous() ? ucp_dt_make_contig(1) : ucp_dt_make_iov();
  }
  void* data() {
    if (!contiguous()) return runs_.data();
    return runs_.empty() ? nullptr : runs_.front().buffer;
  }
  bool contiguous() const { return runs_.size() <= 1; }
  // Elements of datatype(): bytes or runs.
  size_t count() const {
    if (!contiguous()) return runs_.size();
    return runs_.empty() ? 0 : runs_.front().length;
  }

 private:
  std::vector<ucp_dt_iov_t> runs_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_UCX_SUPPORT_H_
