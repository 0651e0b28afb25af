// What a server's connections share.
#ifndef COMMON_HTTP_SERVER_CONTEXT_H_
#define COMMON_HTTP_SERVER_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/http/body_budget.h"
#include "common/http/http_server.h"
#include "common/http/worker_pool.h"

namespace baton {

// How a connection reports its life cycle to the server's table; any thread.
class ConnectionRegistry {
 public:
  virtual ~ConnectionRegistry() = default;
  [[nodiscard]] virtual bool BeginServing(uint64_t id) = 0;
  virtual void Waiting(uint64_t id) = 0;
  virtual void Closed(uint64_t id) = 0;
};

struct ServerContext {
  ServerContext(HttpServerOptions server_options, HttpHandler server_handler,
                ConnectionRegistry& server_registry)
      : options(std::move(server_options)),
        handler(std::move(server_handler)),
        registry(server_registry),
        budget(options.max_body_bytes_in_flight) {}

  const HttpServerOptions options;
  const HttpHandler handler;
  ConnectionRegistry& registry;
  BodyBudget budget;
  std::unique_ptr<WorkerPool> workers;  // nullptr: handlers run on the I/O threads alone.
  std::atomic<uint64_t> refused_bodies{0};
  std::atomic<bool> draining{false};  // Every answer is its connection's last.
};

}  // namespace baton

#endif  // COMMON_HTTP_SERVER_CONTEXT_H_
