// One client's connection: requests one after the other, each answered whole or as events. It lives
// on its own strand; public methods may be called from any thread and post to it.
//
// It never stops reading: while an answer is under way, what comes is kept up to a bound, so that
// the client's leaving is noticed whatever it has sent before.
#ifndef COMMON_HTTP_CONNECTION_H_
#define COMMON_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http/http_handler.h"
#include "common/http/request_reader.h"
#include "common/http/server_context.h"
#include "common/tls/tls_session.h"

namespace baton {

// ---- Answers as bytes ----
// Status line, header, body, chunks and server-sent events. No socket.

// How one request wants to be answered.
struct AnswerForm {
  bool http_1_1 = true;     // Chunks; without them a stream ends with the connection.
  bool head = false;        // The header alone, with the length that the body would have.
  bool keep_alive = false;  // Another request may follow.
  std::string request_id;   // Echoed; empty: none.
  HttpHeaders headers;      // Sent with every answer, such as CORS headers.
};

std::string FormatAnswer(const AnswerForm& form, const HttpResponse& response);

// The beginning of a stream of server-sent events.
std::string FormatEventsHead(const AnswerForm& form);
std::string FormatEvent(const AnswerForm& form, const HttpEvent& event);
// A comment, which clients skip: a sign of life that makes a closed peer show itself.
std::string FormatEventComment(const AnswerForm& form);
std::string FormatEventsEnd(const AnswerForm& form);

// "100 Continue": asks for the body, and means nothing to a client that has sent it.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// ---- A connection ----

class Exchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `context` outlives the connection. `reserved`: only requests of the reserved paths are served.
  Connection(boost::asio::ip::tcp::socket socket, ServerContext& context, uint64_t id,
             bool reserved);

  void Start();
  void Evict();  // It has left the registry's table.
  void Drain();  // Closes if it is idle; otherwise the answer under way is the last.

  // Each acts on the exchange numbered `number`; late calls for older exchanges do nothing.
  void Respond(uint64_t number, HttpResponse response);
  void ExpectEvents(uint64_t number, EventTimes times);
  void BeginEvents(uint64_t number);
  void SendEvent(uint64_t number, HttpEvent event);
  void EndEvents(uint64_t number, bool complete);
  void RespondOrEnd(uint64_t number, HttpResponse response, std::vector<HttpEvent> events);
  void OnDisconnect(uint64_t number, std::function<void()> gone);
  void Abandon(uint64_t number);  // No answer will come.
  void Run(std::function<void()> task) { OnStrand(std::move(task)); }

 private:
  using ErrorCode = boost::system::error_code;
  using Timer = boost::asio::steady_timer;
  enum class Phase {
    kIdle,       // Between requests.
    kHeader,     // Some of a header is there.
    kBody,       // Some of a body is missing.
    kServing,    // The handler has it, or its answer is being written.
    kLingering,  // Answered for the last time: lets the client read before the connection closes.
    kClosed,
  };
  enum class Answer { kNone, kEvents, kComplete };  // What has been queued of it.

  // At once if the caller is on the strand.
  template <typename Task>
  void OnStrand(Task task) {
    boost::asio::dispatch(socket_.get_executor(), [self = shared_from_this(),
                                                   task = std::move(task)]() mutable { task(); });
  }
  template <typename Task>
  void OnExchange(uint64_t number, Task task) {
    OnStrand([this, number, task = std::move(task)]() mutable {
      if (number == number_ && phase_ == Phase::kServing) task();
    });
  }

  // connection.cc: what the client sends.
  void WaitForBytes();
  void OnReadable(ErrorCode error);
  void OnEncrypted(std::string_view bytes);
  void OnNoTls();
  void OnBytes(std::string_view bytes);
  void OnEndOfInput();
  void Advance();
  bool OnHeader();
  bool ChargeBody();
  void OnBodyProgress();
  void OnNothingMore();
  void Dispatch();
  void BeginAnswer(AnswerForm form);
  void Enter(Phase phase);
  void SetDeadline(int64_t after_ms);
  void OnDeadline();
  void Refuse(int status, const std::string& message);
  void Gone();
  void Close();

  // connection_answer.cc: what it is sent.
  void RespondNow(const HttpResponse& response);
  void BeginEventsNow();
  void EndEventsNow(bool complete);
  void WatchEvents(int64_t after_ms);
  void OnSilence();
  void Queue(std::string bytes);
  void QueueAsIs(std::string bytes);
  void WriteQueued();
  void OnWritten(ErrorCode error, size_t count);
  void WatchSending(int64_t after_ms);
  void FinishAnswer();
  void Linger();
  void ProbeHalfClosed();
  void WatchForReset();

  boost::asio::ip::tcp::socket socket_;
  ServerContext& context_;
  const uint64_t id_;
  const bool reserved_;
  Timer deadline_;    // For the phase.
  Timer send_watch_;  // For writes.
  Timer probe_;       // For a half-closed client.
  Timer silence_;     // For a stream.

  std::optional<TlsSession> tls_;  // Between the socket and everything else.
  RequestReader reader_;
  Phase phase_ = Phase::kIdle;
  uint64_t deadline_number_ = 0;  // Distinguishes a late expiry from the current one.
  int64_t body_begun_us_ = 0;
  BodyBudget::Charge charge_;  // For the body that is being read.
  bool waiting_for_bytes_ = false;
  bool end_of_input_ = false;  // The client has closed its half, or all.
  bool overrun_ = false;       // It sent more ahead than is kept; the rest is dropped.

  uint64_t number_ = 0;  // The current exchange's.
  std::weak_ptr<Exchange> exchange_;
  AnswerForm form_;
  Answer answer_ = Answer::kNone;
  bool aborted_ = false;  // The answer ends in the middle.
  EventTimes event_times_;
  int64_t queued_us_ = 0;  // When something was queued last.
  std::function<void()> on_gone_;

  std::string queued_;  // To be written after `writing_`.
  std::string writing_;
  size_t written_ = 0;  // Bytes of `writing_`.
  bool write_under_way_ = false;
  bool sending_watched_ = false;
  int64_t write_begun_us_ = 0;
};

// The handle that a handler answers one request by. It knows its request's number, so that a late
// call can't touch the connection's next one, and answers by itself if it is let go unanswered.
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
  void SendEvent(HttpEvent event) override { connection_->SendEvent(number_, std::move(event)); }
  void EndEvents() override { connection_->EndEvents(number_, /*complete=*/true); }
  void RespondOrEnd(HttpResponse response, std::vector<HttpEvent> events) override {
    connection_->RespondOrEnd(number_, std::move(response), std::move(events));
  }
  void AbortEvents() override { connection_->EndEvents(number_, /*complete=*/false); }
  void OnDisconnect(std::function<void()> gone) override {
    connection_->OnDisconnect(number_, std::move(gone));
  }
  void Run(std::function<void()> task) override { connection_->Run(std::move(task)); }

  // The client left while the request waited for a worker: it need not be handled.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  void set_gone() { gone_.store(true, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  std::atomic<bool> gone_{false};
};

}  // namespace baton

#endif  // COMMON_HTTP_CONNECTION_H_
