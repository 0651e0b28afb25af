#include "common/telemetry/http_endpoint.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;

// A probe's request is a few hundred bytes.
constexpr uint32_t kMaxHeaderBytes = 8192;

Response MakeResponse(http::status status, std::string body) {
  Response response(status, 11);
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = std::move(body);
  return response;
}

Response StatusResponse(const absl::Status& status) {
  if (status.ok()) return MakeResponse(http::status::ok, "ok\n");
  return MakeResponse(http::status::service_unavailable, absl::StrCat(status.message(), "\n"));
}

Response Answer(const Request& request, const HttpEndpointCallbacks& callbacks) {
  const beast::string_view target = request.target();
  const std::string path(target.substr(0, target.find('?')));
  const bool known = path == "/metrics" || path == "/health" || path == "/readiness";
  if (!known) return MakeResponse(http::status::not_found, "no such path\n");
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    Response response = MakeResponse(http::status::method_not_allowed, "only GET and HEAD\n");
    response.set(http::field::allow, "GET, HEAD");
    return response;
  }
  if (path == "/health") return StatusResponse(callbacks.liveness());
  if (path == "/readiness") return StatusResponse(callbacks.readiness());
  Response response = MakeResponse(http::status::ok, callbacks.metrics());
  response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
  return response;
}

// One connection, kept alive by the handlers that hold a shared_ptr to it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `open_connections` counts this one until it is destroyed.
  Connection(tcp::socket socket, const HttpEndpointCallbacks& callbacks,
             std::chrono::milliseconds idle_timeout, size_t* open_connections)
      : stream_(std::move(socket)),
        callbacks_(callbacks),
        idle_timeout_(idle_timeout),
        open_connections_(open_connections) {
    ++*open_connections_;
  }
  ~Connection() { --*open_connections_; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(0);
    stream_.expires_after(idle_timeout_);
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code error, size_t) { self->OnRead(error); });
  }

 private:
  void OnRead(error_code error) {
    if (!error) {
      const Request request = parser_->release();
      Response response = Answer(request, callbacks_);
      response.keep_alive(request.keep_alive());
      Write(std::move(response), request.method() == http::verb::head);
      return;
    }
    // The client's mistakes get an answer; end of stream, timeout and reset do not.
    const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
    if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message) {
      return;
    }
    Response response =
        MakeResponse(http::status::bad_request, absl::StrCat(error.message(), "\n"));
    response.keep_alive(false);
    Write(std::move(response), /*head=*/false);
  }

  void Write(Response response, bool head) {
    response.prepare_payload();
    response_ = std::move(response);
    const auto written = [self = shared_from_this()](error_code error, size_t) {
      self->OnWritten(error);
    };
    stream_.expires_after(idle_timeout_);
    serializer_.emplace(response_);
    if (head) {
      // HEAD answers with the header that GET would have, length included.
      http::async_write_header(stream_, *serializer_, written);
    } else {
      http::async_write(stream_, *serializer_, written);
    }
  }

  void OnWritten(error_code error) {
    if (error) return;
    if (response_.keep_alive()) {
      Read();
      return;
    }
    stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  }

  beast::tcp_stream stream_;
  const HttpEndpointCallbacks& callbacks_;
  const std::chrono::milliseconds idle_timeout_;
  size_t* const open_connections_;
  beast::flat_buffer buffer_{size_t{2} * kMaxHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  Response response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
};

}  // namespace

class HttpEndpoint::Server {
 public:
  Server(const HttpEndpointConfig& config, HttpEndpointCallbacks callbacks)
      : callbacks_(std::move(callbacks)),
        max_connections_(config.max_connections),
        idle_timeout_(config.idle_timeout_ms) {}

  ~Server() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  absl::Status Listen(const HttpEndpointConfig& config) {
    error_code error;
    const asio::ip::address address = asio::ip::make_address(config.host, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot serve metrics on '", config.host, "': expected an IP address"));
    }
    const tcp::endpoint endpoint(address, config.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (!error) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", config.host, ":",
                                               config.port, ": ", error.message()));
  }

  void Run() {
    Accept();
    thread_ = std::thread([this] { context_.run(); });
  }

  uint16_t port() const { return port_; }

 private:
  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        AcceptLater();
        return;
      }
      // A full house closes the newcomer: idle connections leave after their timeout.
      if (open_connections_ < max_connections_) {
        std::make_shared<Connection>(std::move(socket), callbacks_, idle_timeout_,
                                     &open_connections_)
            ->Read();
      }
      Accept();
    });
  }

  // Out of descriptors, most likely: trying at once would spin.
  void AcceptLater() {
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](error_code error) {
      if (!error) Accept();
    });
  }

  const HttpEndpointCallbacks callbacks_;
  const size_t max_connections_;
  const std::chrono::milliseconds idle_timeout_;
  size_t open_connections_ = 0;  // Outlives the context's handlers, which hold the connections.
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer retry_{context_};
  uint16_t port_ = 0;
  std::thread thread_;
};

HttpEndpoint::HttpEndpoint(std::unique_ptr<Server> server) : server_(std::move(server)) {}
HttpEndpoint::~HttpEndpoint() = default;

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const HttpEndpointConfig& config,
                                                                  HttpEndpointCallbacks callbacks) {
  auto server = std::make_unique<Server>(config, std::move(callbacks));
  const absl::Status status = server->Listen(config);
  if (!status.ok()) return status;
  server->Run();
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(server)));
}

uint16_t HttpEndpoint::port() const { return server_->port(); }

}  // namespace baton
