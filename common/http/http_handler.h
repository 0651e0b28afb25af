// What a server's handler sees of HTTP: requests, answers, and the exchange that carries an answer
// back. Knows no socket, so tests of a handler need no server.
#ifndef COMMON_HTTP_HTTP_HANDLER_H_
#define COMMON_HTTP_HTTP_HANDLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

// In order; names in any case, possibly repeated.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The value of the first header of that name, compared without case; empty if there is none.
std::string_view FindHeader(const HttpHeaders& headers, std::string_view name);

struct HttpRequest {
  std::string method;  // "GET", "POST", ... A HEAD arrives as the GET whose body is not sent.
  std::string path;    // Percent-decoded, without the query.
  std::string query;   // What follows the '?', as the client wrote it; may be empty.
  HttpHeaders headers;
  std::string body;
  // The client's X-Request-Id if it sent a valid one, else a random one. The answer carries it.
  std::string request_id;

  std::string_view Header(std::string_view name) const { return FindHeader(headers, name); }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers = {};  // Besides those that the server sets: type, length, connection, date.
};

// A server-sent event: its data and, for protocols that have one, its name. What is text alone is
// an event without a name.
struct HttpEvent {
  HttpEvent(std::string line) : data(std::move(line)) {}  // NOLINT(google-explicit-constructor)
  HttpEvent(const char* line) : data(line) {}             // NOLINT(google-explicit-constructor)
  HttpEvent(std::string called, std::string line)
      : name(std::move(called)), data(std::move(line)) {}

  std::string name;
  std::string data;  // One line.
};

// When a stream shows that it lives.
struct EventTimes {
  // How long its head is held back at most for an error that needs a status of its own.
  int64_t hold_ms = 0;
  // After so long without anything a comment leaves, which clients skip; 0: none does, and the head
  // is held back until there is an event.
  int64_t keepalive_ms = 0;
};

// The answer to one request; any thread. Either Respond once, or BeginEvents, SendEvent any number
// of times, then EndEvents or AbortEvents. Nothing blocks; what a slow client does not read is kept
// up to a bound, then the client is cut off. Let go of it before the server is destroyed.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Respond(HttpResponse response) = 0;
  // The answer will be events, or an error by RespondOrEnd: its head leaves with BeginEvents or
  // when it has been held back for long enough. Nothing if there is an answer already.
  virtual void ExpectEvents(EventTimes times) = 0;
  virtual void BeginEvents() = 0;
  virtual void SendEvent(HttpEvent event) = 0;
  virtual void EndEvents() = 0;
  // The end of an answer that comes to an error before its first event: `response` if the head has
  // not left, else `events` and the stream's end.
  virtual void RespondOrEnd(HttpResponse response, std::vector<HttpEvent> events) = 0;
  // Closes the connection in the middle, so that the client cannot take the stream for complete.
  virtual void AbortEvents() = 0;
  // Calls `gone` once if the client leaves before the answer is complete; at once if it has left.
  virtual void OnDisconnect(std::function<void()> gone) = 0;
  // Runs `task` where the answer is written: one at a time, in the order of all these calls,
  // perhaps before this returns; never if the server ends first. What makes an answer's bytes
  // belongs here, on a thread of this client's connection.
  virtual void Run(std::function<void()> task) = 0;
};

// A request with a body is handled on one of the server's worker threads, where parsing and
// tokenizing megabytes delays no probe; one without on an I/O thread, where it must return
// at once. Several calls run at a time.
using HttpHandler = std::function<void(const HttpRequest&, const std::shared_ptr<HttpExchange>&)>;

// The answer to a request that no handler wants to answer, in its application's form.
using HttpErrorFormat = std::function<HttpResponse(int status, const std::string& message)>;
HttpResponse PlainHttpError(int status, const std::string& message);  // One line of text.

// ---- Routes ----
// A table of paths and methods, itself an HttpHandler: finds a request's handler, and answers what
// none is for: 404, 405 with Allow, OPTIONS.

class HttpRoutes {
 public:
  explicit HttpRoutes(HttpErrorFormat format_error) : format_error_(std::move(format_error)) {}

  // `path`: all of it, or a beginning followed by '*', such as "/v1/models/*"; whole paths come
  // first. GET serves HEAD too. Before Handle.
  void Add(std::string method, std::string path, HttpHandler handler);

  // Thread-safe.
  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    HttpHandler handler;
  };

  std::vector<const Route*> Find(std::string_view path) const;

  const HttpErrorFormat format_error_;
  std::vector<Route> routes_;
};

}  // namespace baton

#endif  // COMMON_HTTP_HTTP_HANDLER_H_
