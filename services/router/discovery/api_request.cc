#include "services/router/discovery/api_request.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"
#include "common/net/host.h"

namespace baton::router {
namespace {

constexpr size_t kMaxAccountFileBytes = 1 << 20;
// A hundred pods with all that controllers write into them.
constexpr size_t kMaxBodyBytes = 64 << 20;
// The API stores no object larger than 1.5 MiB.
constexpr size_t kMaxLineBytes = 4 << 20;
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr long kConnectTimeoutMs = 5000;
constexpr long kKeepAliveSeconds = 30;

CURLM* MakeMulti() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  BATON_CHECK(ready == CURLE_OK) << "libcurl does not start: " << curl_easy_strerror(ready);
  CURLM* multi = curl_multi_init();
  BATON_CHECK(multi != nullptr) << "libcurl has no memory";
  return multi;
}

}  // namespace

absl::StatusOr<std::string> ReadAccountFile(const std::string& account_dir,
                                            const std::string& name) {
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadTextFile(absl::StrCat(account_dir, "/", name), kMaxAccountFileBytes));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<ApiAccess> AccessOfPod(const std::string& account_dir) {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  int number = 0;
  if (host == nullptr || port == nullptr || *host == '\0' || !absl::SimpleAtoi(port, &number)) {
    return absl::FailedPreconditionError(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod of a "
        "Kubernetes cluster");
  }
  const auto token = ReadAccountFile(account_dir, "token");
  if (!token.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the pod has no service account to ask the API with: ", token.status().message()));
  }
  return ApiAccess{absl::StrCat("https://", net::JoinHostPort(host, number)), account_dir};
}

std::string UrlEscaped(std::string_view text) {
  char* escaped = curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size()));
  std::string result = escaped == nullptr ? "" : escaped;
  curl_free(escaped);
  return result;
}

// A request under way. libcurl calls Take from within Poll.
struct ApiRequest::Transfer {
  Transfer(CURLM* to_multi, Callbacks to_callbacks)
      : multi(to_multi), easy(curl_easy_init()), callbacks(std::move(to_callbacks)) {
    BATON_CHECK(easy != nullptr) << "libcurl has no memory";
  }
  ~Transfer() {
    if (added) curl_multi_remove_handle(multi, easy);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  static size_t OnBytes(char* bytes, size_t, size_t count, void* self) {
    return static_cast<Transfer*>(self)->Take({bytes, count}) ? count : 0;
  }

  // False ends the transfer.
  bool Take(std::string_view bytes) {
    long code = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
      buffer.append(bytes.substr(0, kMaxErrorBytes - std::min(kMaxErrorBytes, buffer.size())));
      return true;
    }
    const size_t limit = callbacks.on_line ? kMaxLineBytes : kMaxBodyBytes;
    while (!bytes.empty()) {
      const size_t end = callbacks.on_line ? bytes.find('\n') : std::string_view::npos;
      buffer.append(bytes.substr(0, end));
      if (buffer.size() > limit) {
        problem = absl::ResourceExhaustedError(absl::StrCat("the API's answer has a ",
                                                            callbacks.on_line ? "line" : "body",
                                                            " of more than ", limit, " bytes"));
        return false;
      }
      if (end == std::string_view::npos) return true;
      bytes.remove_prefix(end + 1);
      const std::string line = std::exchange(buffer, {});
      if (!line.empty() && !callbacks.on_line(line)) {
        abandoned = true;
        return false;
      }
    }
    return true;
  }

  Outcome End(CURLcode result) {
    Outcome outcome;
    long code = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    outcome.http_status = static_cast<int>(code);
    curl_off_t retry_after_seconds = 0;
    curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after_seconds);
    outcome.retry_after_us = std::clamp<int64_t>(retry_after_seconds, 0, 3600) * 1'000'000;
    outcome.status = problem;
    if (problem.ok() && result != CURLE_OK) {
      outcome.status =
          absl::UnavailableError(*error_text != '\0' ? error_text : curl_easy_strerror(result));
    }
    if (code != 200) outcome.error_body = buffer;
    return outcome;
  }

  CURLM* const multi;
  CURL* const easy;
  const Callbacks callbacks;
  curl_slist* headers = nullptr;
  bool added = false;
  bool abandoned = false;
  std::string buffer;    // The body so far, or the line.
  absl::Status problem;  // Why it was ended here, or could not begin.
  char error_text[CURL_ERROR_SIZE] = {};
};

ApiRequest::ApiRequest(ApiAccess access) : access_(std::move(access)), multi_(MakeMulti()) {}

ApiRequest::~ApiRequest() {
  transfer_.reset();
  curl_multi_cleanup(multi_);
}

void ApiRequest::Get(const std::string& path, int64_t timeout_ms, Callbacks callbacks) {
  transfer_ = std::make_unique<Transfer>(multi_, std::move(callbacks));
  Transfer& transfer = *transfer_;
  const auto token = ReadAccountFile(access_.account_dir, "token");
  if (!token.ok()) {
    transfer.problem = token.status();
    return Wake();
  }
  const std::string bearer = absl::StrCat("Authorization: Bearer ", *token);
  transfer.headers = curl_slist_append(transfer.headers, bearer.c_str());
  transfer.headers = curl_slist_append(transfer.headers, "Accept: application/json");
  CURL* const easy = transfer.easy;
  curl_easy_setopt(easy, CURLOPT_URL, (access_.base_url + path).c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers);
  curl_easy_setopt(easy, CURLOPT_CAINFO, (access_.account_dir + "/ca.crt").c_str());
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "baton");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, kKeepAliveSeconds);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, kKeepAliveSeconds);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.error_text);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Transfer::OnBytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  const CURLMcode added = curl_multi_add_handle(multi_, easy);
  transfer.added = added == CURLM_OK;
  if (!transfer.added) transfer.problem = absl::InternalError(curl_multi_strerror(added));
}

void ApiRequest::Abandon() { transfer_.reset(); }

void ApiRequest::Poll(int64_t timeout_ms) {
  int running = 0;
  curl_multi_perform(multi_, &running);
  if (transfer_ == nullptr || (transfer_->added && running > 0)) {
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(timeout_ms), nullptr);
    curl_multi_perform(multi_, &running);
  }
  if (transfer_ == nullptr) return;
  if (transfer_->abandoned) return Abandon();
  if (transfer_->added) {
    int left = 0;
    const CURLMsg* message = curl_multi_info_read(multi_, &left);
    if (message == nullptr || message->msg != CURLMSG_DONE) return;
    const CURLcode result = message->data.result;
    const std::unique_ptr<Transfer> done = std::move(transfer_);
    const Outcome outcome = done->End(result);
    const bool whole = outcome.http_status == 200 && outcome.status.ok() && done->callbacks.on_body;
    if (whole && !done->callbacks.on_body(done->buffer)) return;
    return done->callbacks.on_end(outcome);
  }
  const std::unique_ptr<Transfer> failed = std::move(transfer_);
  failed->callbacks.on_end({0, failed->problem, 0, ""});
}

void ApiRequest::Wake() { curl_multi_wakeup(multi_); }

}  // namespace baton::router
