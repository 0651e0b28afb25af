// A server for tests whose handler keeps what it is given until the test answers it.
#ifndef COMMON_HTTP_TESTING_TEST_SERVER_H_
#define COMMON_HTTP_TESTING_TEST_SERVER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/sync.h"
#include "common/http/http_server.h"

namespace baton {

struct HeldRequest {
  HttpRequest request;
  std::shared_ptr<HttpExchange> exchange;

  void Respond(const std::string& body) const { exchange->Respond({200, "text/plain", body}); }
};

// Waits until `condition()` holds; in vain, the test ends by its own time limit.
template <typename Condition>
void AwaitTrue(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

// Answers everything but /hold with "METHOD PATH BODY"; that one waits in Next().
class TestServer {
 public:
  explicit TestServer(HttpServerOptions options = {}) {
    if (options.max_request_bytes == 0) options.max_request_bytes = 1000;
    auto server =
        HttpServer::Start(options, [this](const HttpRequest& request, const auto& exchange) {
          if (request.path != "/hold") {
            return exchange->Respond(
                {200, "text/plain", request.method + " " + request.path + " " + request.body});
          }
          MutexLock lock(&mutex_);
          held_.push_back({request, exchange});
        });
    BATON_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~TestServer() {
    std::deque<HeldRequest> held;  // Exchanges answer when they go, so not under the lock.
    {
      MutexLock lock(&mutex_);
      held.swap(held_);
    }
    held.clear();
    server_.reset();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  uint16_t port() const { return server_->port(); }
  HttpServer& server() { return *server_; }

  // The next request that is held; waits for it.
  HeldRequest Next() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_.empty(); });
    HeldRequest held = std::move(held_.front());
    held_.pop_front();
    return held;
  }

 private:
  Mutex mutex_;
  std::deque<HeldRequest> held_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

}  // namespace baton

#endif  // COMMON_HTTP_TESTING_TEST_SERVER_H_
