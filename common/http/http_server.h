// An asynchronous HTTP/1.1 server: a few threads, any number of connections up to a bound. It hands
// every request to one handler, which answers whenever it can, whole or as server-sent events.
#ifndef COMMON_HTTP_HTTP_SERVER_H_
#define COMMON_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_handler.h"

namespace baton {

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

}  // namespace baton

#endif  // COMMON_HTTP_HTTP_SERVER_H_
