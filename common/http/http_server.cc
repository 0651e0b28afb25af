#include "common/http/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/http/connection.h"
#include "common/http/connection_table.h"
#include "common/http/server_context.h"

namespace baton {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

constexpr auto kAcceptRetry = std::chrono::milliseconds(50);
constexpr auto kFlushTime = std::chrono::milliseconds(500);

// Clients are told apart by address; of IPv6 by the network, since one client has 2^64 addresses.
std::string AddressKey(const asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size() / 2};
}

// Connections must not take every descriptor of the process: files and workers need some.
size_t MostConnections(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const size_t most = static_cast<size_t>(limit.rlim_cur) / 4 * 3;
  if (wanted > most) {
    LOG(kWarning) << "at most " << most << " HTTP connections instead of " << wanted
                  << ": the process may have " << limit.rlim_cur << " open files (ulimit -n)";
  }
  return std::min(wanted, most);
}

absl::StatusOr<asio::ip::address> Resolve(asio::io_context& io, std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (!error) return address;
  const auto found = Tcp::resolver(io).resolve(host, "", Tcp::resolver::passive, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("host: \"", host, "\" is no address and does not resolve to one"));
  }
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) return entry.endpoint().address();
  }
  return found.begin()->endpoint().address();
}

class AsioServer : public HttpServer, private ConnectionRegistry {
 public:
  AsioServer(const HttpServerOptions& options, HttpHandler handler)
      : table_({MostConnections(options.max_connections), options.max_connections_per_address,
                options.reserved_connections}),
        context_(options, std::move(handler), *this),
        io_(options.io_threads),
        acceptor_(asio::make_strand(io_)),
        accept_retry_(acceptor_.get_executor()) {}

  // Answers that are being written get a moment to leave. Then first the threads that hand out
  // work, then those that do it; what they still post is dropped with `io_`.
  ~AsioServer() override {
    if (context_.draining.load()) {
      MutexLock lock(&mutex_);
      mutex_.AwaitFor(kFlushTime, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return table_.size() == 0;
      });
    }
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    context_.workers.reset();
  }
  AsioServer(const AsioServer&) = delete;
  AsioServer& operator=(const AsioServer&) = delete;

  absl::Status Listen() {
    const HttpServerOptions& options = context_.options;
    BATON_ASSIGN_OR_RETURN(const asio::ip::address address, Resolve(io_, options.host));
    const Tcp::endpoint endpoint(address, options.port);
    boost::system::error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
    if (!error && address.is_v6() && address.is_unspecified()) {
      acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (!error) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.host, ":", options.port, ": ", error.message()));
  }

  void Run() {
    const HttpServerOptions& options = context_.options;
    if (options.worker_threads > 0) {
      context_.workers = std::make_unique<WorkerPool>("http-worker", options.worker_threads);
    }
    asio::post(acceptor_.get_executor(), [this] { Accept(); });
    for (int i = 0; i < options.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  uint16_t port() const override { return port_; }

  HttpServerStats stats() const override {
    MutexLock lock(&mutex_);
    return {table_.size(), context_.budget.used_bytes(), evicted_, refused_,
            context_.refused_bodies.load()};
  }

  void BeginDrain() override { context_.draining = true; }

  void StopListening() override {
    context_.draining = true;
    asio::post(acceptor_.get_executor(), [this] {
      boost::system::error_code ignored;
      accept_retry_.cancel();
      acceptor_.close(ignored);
    });
    std::vector<std::shared_ptr<Connection>> open;
    {
      MutexLock lock(&mutex_);
      for (const auto& [id, connection] : connections_) open.push_back(connection.lock());
    }
    for (const auto& connection : open) {
      if (connection != nullptr) connection->Drain();
    }
  }

 private:
  // ConnectionRegistry.
  bool BeginServing(uint64_t id) override {
    MutexLock lock(&mutex_);
    return table_.BeginServing(id);
  }
  void Waiting(uint64_t id) override {
    MutexLock lock(&mutex_);
    table_.Waiting(id);
  }
  void Closed(uint64_t id) override {
    MutexLock lock(&mutex_);
    if (table_.Remove(id)) Tell(HttpServerEvent::kClosed);
    connections_.erase(id);
  }

  // On the acceptor's strand.
  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_),
                           [this](boost::system::error_code error, Tcp::socket socket) {
                             if (!acceptor_.is_open()) return;
                             if (error) return AcceptLater();
                             Serve(std::move(socket));
                             Accept();
                           });
  }

  // Out of descriptors, most likely: an idle connection has one, and trying at once would spin.
  void AcceptLater() {
    std::shared_ptr<Connection> evicted;
    {
      MutexLock lock(&mutex_);
      evicted = Evicted(table_.EvictOne());
    }
    if (evicted != nullptr) evicted->Evict();
    accept_retry_.expires_after(kAcceptRetry);
    accept_retry_.async_wait([this](boost::system::error_code error) {
      if (!error && acceptor_.is_open()) Accept();
    });
  }

  void Serve(Tcp::socket socket) {
    boost::system::error_code error;
    const Tcp::endpoint client = socket.remote_endpoint(error);
    if (error) return;  // It has left already.
    const uint64_t id = next_id_++;
    std::shared_ptr<Connection> connection;
    std::shared_ptr<Connection> evicted;
    {
      MutexLock lock(&mutex_);
      const auto admission = table_.Add(id, AddressKey(client.address()));
      evicted = Evicted(admission.evicted);
      if (admission.verdict == ConnectionTable::Verdict::kRefused) {
        ++refused_;
        Tell(HttpServerEvent::kRefused);
      } else {
        Tell(HttpServerEvent::kOpened);
        const bool reserved = admission.verdict == ConnectionTable::Verdict::kReserved;
        connection = std::make_shared<Connection>(std::move(socket), context_, id, reserved);
        connections_[id] = connection;
      }
    }
    if (evicted != nullptr) evicted->Evict();
    if (connection != nullptr) connection->Start();
  }

  void Tell(HttpServerEvent event) const { context_.options.observer(event); }

  std::shared_ptr<Connection> Evicted(std::optional<uint64_t> id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!id.has_value()) return nullptr;
    ++evicted_;
    Tell(HttpServerEvent::kEvicted);
    Tell(HttpServerEvent::kClosed);
    const auto found = connections_.find(*id);
    if (found == connections_.end()) return nullptr;
    std::shared_ptr<Connection> connection = found->second.lock();
    connections_.erase(found);
    return connection;
  }

  mutable Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  uint64_t evicted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  ServerContext context_;  // Outlives `io_`, whose handlers hold the connections.
  asio::io_context io_;
  Tcp::acceptor acceptor_;
  asio::steady_timer accept_retry_;
  uint64_t next_id_ = 1;
  std::vector<std::thread> threads_;
  uint16_t port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler handler) {
  auto server = std::make_unique<AsioServer>(options, std::move(handler));
  BATON_RETURN_IF_ERROR(server->Listen());
  server->Run();
  return server;
}

}  // namespace baton
