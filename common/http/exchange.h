// The handle that a handler answers one request by. It knows its request's number, so that a late
// call can't touch the connection's next one, and answers by itself if it is let go unanswered.
#ifndef COMMON_HTTP_EXCHANGE_H_
#define COMMON_HTTP_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/http/connection.h"
#include "common/http/http_handler.h"

namespace baton {

class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  ~Exchange() override { connection_->Abandon(number_); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void Respond(HttpResponse response) override {
    connection_->Respond(number_, std::move(response));
  }
  void ExpectEvents(EventTimes times) override { connection_->ExpectEvents(number_, times); }
  void BeginEvents() override { connection_->BeginEvents(number_); }
  void SendEvent(std::string data) override { connection_->SendEvent(number_, std::move(data)); }
  void EndEvents() override { connection_->EndEvents(number_, /*complete=*/true); }
  void RespondOrEnd(HttpResponse response, std::vector<std::string> events) override {
    connection_->RespondOrEnd(number_, std::move(response), std::move(events));
  }
  void AbortEvents() override { connection_->EndEvents(number_, /*complete=*/false); }
  void OnDisconnect(std::function<void()> gone) override {
    connection_->OnDisconnect(number_, std::move(gone));
  }

  // The client left while the request waited for a worker: it need not be handled.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  void set_gone() { gone_.store(true, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  std::atomic<bool> gone_{false};
};

}  // namespace baton

#endif  // COMMON_HTTP_EXCHANGE_H_
