// What a server's connections share.
#ifndef COMMON_HTTP_SERVER_CONTEXT_H_
#define COMMON_HTTP_SERVER_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/http/http_server.h"
#include "common/http/worker_pool.h"

namespace baton {

// Bytes of request bodies that a server holds at once, over all connections. Counted as they come,
// never as announced: an announcement costs nothing, so it must not shut anyone out.

// Thread-safe.
class BodyBudget {
 public:
  // A body's first bytes are free, so that large bodies never shut out ordinary requests; the
  // number of connections bounds them.
  static constexpr size_t kFreeBytes = size_t{64} * 1024;

  explicit BodyBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

  // One body's share, returned by its destructor.
  class Charge {
   public:
    Charge() = default;
    explicit Charge(BodyBudget& budget) : budget_(&budget) {}
    Charge(Charge&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Charge() {
      if (budget_ != nullptr) budget_->used_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
    }

    // The body has grown to `body_bytes`. False, and nothing changes, if that is too much.
    [[nodiscard]] bool GrowTo(size_t body_bytes) {
      const size_t wanted = body_bytes > kFreeBytes ? body_bytes - kFreeBytes : 0;
      if (wanted <= bytes_) return true;
      const size_t more = wanted - bytes_;
      if (budget_->used_bytes_.fetch_add(more, std::memory_order_relaxed) + more >
          budget_->limit_bytes_) {
        budget_->used_bytes_.fetch_sub(more, std::memory_order_relaxed);
        return false;
      }
      bytes_ = wanted;
      return true;
    }

   private:
    BodyBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

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
