// HTTPS to the Kubernetes API with the service account of the pod, by libcurl: one request at a
// time, its answer whole or line by line. The token and the CA are read anew for every request,
// since both are replaced while the pod runs.
#ifndef SERVICES_ROUTER_DISCOVERY_API_REQUEST_H_
#define SERVICES_ROUTER_DISCOVERY_API_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::router {

// Where the API is and who asks.
struct ApiAccess {
  std::string base_url;     // https://HOST:PORT
  std::string account_dir;  // With the files token and ca.crt.
};

// The API that this pod is to talk to. FailedPrecondition outside of Kubernetes.
absl::StatusOr<ApiAccess> AccessOfPod(const std::string& account_dir);
// The text of a small file of the account, without white space at its ends.
absl::StatusOr<std::string> ReadAccountFile(const std::string& account_dir,
                                            const std::string& name);

// One thread's, but for Wake.
class ApiRequest {
 public:
  struct Outcome {
    int http_status = 0;  // 0: no answer.
    absl::Status status;  // What went wrong on the way; OK does not say that the status is 200.
    int64_t retry_after_us = 0;
    std::string error_body;  // If the status is not 200.
  };
  struct Callbacks {
    // The body of an answer with status 200: once, at its end, or each line as it comes. False
    // breaks the request off, and there is no `on_end`.
    std::function<bool(std::string_view)> on_body;
    std::function<bool(std::string_view)> on_line;
    std::function<void(const Outcome&)> on_end;
  };

  explicit ApiRequest(ApiAccess access);
  ~ApiRequest();
  ApiRequest(const ApiRequest&) = delete;
  ApiRequest& operator=(const ApiRequest&) = delete;

  // Breaks off the one before. `on_end` follows in Poll, in any case but that one.
  void Get(const std::string& path, int64_t timeout_ms, Callbacks callbacks);
  void Abandon();
  // Moves the request on and runs its callbacks; returns after `timeout_ms`, or when something
  // happened or Wake was called.
  void Poll(int64_t timeout_ms);
  void Wake();  // Any thread.

 private:
  struct Transfer;

  const ApiAccess access_;
  void* const multi_;  // CURLM*
  std::unique_ptr<Transfer> transfer_;
};

// For a query.
std::string UrlEscaped(std::string_view text);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_API_REQUEST_H_
