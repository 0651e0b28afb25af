#include "common/http/http_server.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/http/connection.h"

namespace baton {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

class AsioServer : public HttpServer {
 public:
  AsioServer(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        context_(options_.threads),
        acceptor_(context_) {}

  ~AsioServer() override {
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Listen() {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(options_.host, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("host: must be an IP address, got \"", options_.host, "\""));
    }
    const Tcp::endpoint endpoint(address, options_.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.host, ":",
                                                 options_.port, ": ", error.message()));
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { context_.run(); });
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  void StopListening() override {
    asio::post(context_, [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
    });
  }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(context_),
                           [this](boost::system::error_code error, Tcp::socket socket) {
                             if (!acceptor_.is_open()) return;
                             if (!error) Serve(std::move(socket));
                             Accept();
                           });
  }

  void Serve(Tcp::socket socket) {
    const bool full = open_.fetch_add(1) >= options_.max_connections;
    const auto connection = std::make_shared<Connection>(std::move(socket), options_, handler_,
                                                         [this] { open_.fetch_sub(1); });
    if (!full) return connection->Run();
    HttpResponse busy;
    busy.status = 503;
    busy.body =
        R"({"error":{"message":"too many connections","type":"server_error","param":null,"code":null}})";
    connection->Refuse(std::move(busy));
  }

  const HttpServerOptions options_;
  const HttpHandler handler_;
  std::atomic<size_t> open_{0};  // Outlives the context, whose handlers hold the connections.
  asio::io_context context_;
  Tcp::acceptor acceptor_;
  std::vector<std::thread> threads_;
  uint16_t port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler handler) {
  auto server = std::make_unique<AsioServer>(options, std::move(handler));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace baton
