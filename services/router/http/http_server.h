// An asynchronous HTTP/1.1 server: a few threads, any number of connections up to a bound. It hands
// every request to one handler, which answers whenever it can, whole or as server-sent events.
#ifndef SERVICES_ROUTER_HTTP_HTTP_SERVER_H_
#define SERVICES_ROUTER_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace baton::router {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // Without the query.
  std::string body;
  std::string authorization;  // The header's value, or empty.
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string allow;  // Of a 405.
};

// The answer to one request; any thread. Either Respond once, or BeginEvents, SendEvent any number
// of times, then EndEvents or AbortEvents. Nothing blocks; what a slow client does not read is kept
// up to a bound, then the client is cut off.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Respond(HttpResponse response) = 0;
  virtual void BeginEvents() = 0;
  virtual void SendEvent(std::string data) = 0;  // One line of text.
  virtual void EndEvents() = 0;
  // Closes the connection in the middle, so that the client cannot take the stream for complete.
  virtual void AbortEvents() = 0;
  // Calls `gone` once if the client leaves before the answer is complete; at once if it has left.
  virtual void OnDisconnect(std::function<void()> gone) = 0;
};

// Called on a server thread; must not block for long.
using HttpHandler = std::function<void(const HttpRequest&, const std::shared_ptr<HttpExchange>&)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // An IP address.
  uint16_t port = 0;               // 0: any free port.
  int threads = 2;
  size_t max_connections = 4096;  // One more gets 503 and is closed.
  size_t max_request_bytes = 0;   // Of a body; larger ones get 413.
  int idle_timeout_s = 60;        // Between requests, and for a client to read or send something.
};

class HttpServer {
 public:
  // INVALID_ARGUMENT for a host that is no IP address, UNAVAILABLE if it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler handler);
  virtual ~HttpServer() = default;  // Closes everything and joins the threads.
  virtual uint16_t port() const = 0;
  // Takes no new connections; those that are here go on.
  virtual void StopListening() = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_HTTP_SERVER_H_
