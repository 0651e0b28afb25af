// An asynchronous HTTP/1.1 server. It hands every request to one handler, which answers whenever it
// can, whole or as server-sent events.
//
// What clients may hold is bounded: connections in all and by address (the one that has idled
// longest gives way), bytes of bodies, time for a header, a body, and for reading an answer. A few
// connections are kept back for probes, so that a busy server never looks like a dead one.
#ifndef COMMON_HTTP_HTTP_SERVER_H_
#define COMMON_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/cors.h"
#include "common/http/http_handler.h"
#include "common/tls/tls_certificate.h"

namespace baton {

// Connection events that a server reports, for metrics.
enum class HttpServerEvent {
  kOpened,       // A connection was admitted.
  kClosed,       // An admitted connection ended, at either end.
  kEvicted,      // An idle one gave way to a newcomer; kClosed comes as well.
  kRefused,      // No room for a connection, or for the request on one of the reserved ones.
  kBodyRefused,  // No room for a request's body.
};
// Called on any thread, under the server's lock: it returns at once and calls nothing of the
// server.
using HttpServerObserver = std::function<void(HttpServerEvent)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // An address of this machine, or a name that resolves to one.
  uint16_t port = 0;               // 0: any free port.
  int io_threads = 2;
  int worker_threads = 2;  // For requests with bodies; 0: the I/O threads handle them.
  // Whether to handle a request takes long, whatever its size: such ones leave others a thread, as
  // large ones do. Called on an I/O thread; null: size alone says it.
  std::function<bool(const HttpRequest&)> takes_long;

  size_t max_connections = 8192;
  size_t max_connections_per_address = 0;  // 0: no limit of its own.
  size_t reserved_connections = 64;        // On top, for requests of these paths alone.
  std::vector<std::string> reserved_paths;

  size_t max_request_bytes = 0;                         // For one body; larger ones get 413.
  size_t max_body_bytes_in_flight = size_t{256} << 20;  // For all bodies; more get 503.

  int64_t idle_timeout_ms = 120'000;    // Between requests.
  int64_t receive_timeout_ms = 30'000;  // For a header, and for a body to come at 16 KiB/s.
  int64_t send_timeout_ms = 60'000;     // For a client to read anything of its answer.

  std::shared_ptr<TlsCertificate> tls;  // HTTPS alone; nullptr: HTTP alone.
  CorsPolicy cors;
  HttpErrorFormat format_error = PlainHttpError;
  HttpServerObserver observer = [](HttpServerEvent) {};
};

struct HttpServerStats {
  size_t connections = 0;
  size_t body_bytes = 0;        // Held now, beyond the first 64 KiB of each body.
  uint64_t evicted = 0;         // Idle connections that gave way.
  uint64_t refused = 0;         // Connections that found no room.
  uint64_t refused_bodies = 0;  // Requests whose bodies did.
};

class HttpServer {
 public:
  // INVALID_ARGUMENT for a host that is no address and does not resolve, UNAVAILABLE if it cannot
  // listen there; both name it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler handler);
  virtual ~HttpServer() = default;  // Closes everything and joins the threads.
  virtual uint16_t port() const = 0;
  virtual HttpServerStats stats() const = 0;
  // Every answer from now on is its connection's last, so that clients go elsewhere when they have
  // theirs. New connections are taken as before.
  virtual void BeginDrain() = 0;
  // Takes no new connections and closes the idle ones; running requests get their answers.
  virtual void StopListening() = 0;
};

}  // namespace baton

#endif  // COMMON_HTTP_HTTP_SERVER_H_
