#include "services/baton/cluster_watch.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/net/host.h"
#include "common/rpc/channel.h"

namespace baton {
namespace {

namespace beast = boost::beast;

constexpr int kAskEveryMs = 25;
// One answer; the router is on this machine.
constexpr int kAnswerMs = 1000;
constexpr int kReconnectMs = 100;

}  // namespace

ClusterWatch::ClusterWatch(ClusterWatchOptions options) : options_(std::move(options)) {
  stub_ = v1::Cluster::NewStub(
      rpc::OpenChannel(net::JoinHostPort(options_.host, options_.grpc_port),
                       {.max_reconnect_ms = kReconnectMs, .max_receive_bytes = -1}));
  thread_ = std::thread([this] { Run(); });
}

ClusterWatch::~ClusterWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool ClusterWatch::ready() const {
  MutexLock lock(&mutex_);
  return ready_;
}

std::string ClusterWatch::waiting_for() const {
  MutexLock lock(&mutex_);
  return waiting_for_;
}

std::vector<v1::ListedWorker> ClusterWatch::workers() const {
  MutexLock lock(&mutex_);
  return workers_;
}

void ClusterWatch::Run() {
  pthread_setname_np(pthread_self(), "baton-watch");
  while (true) {
    const absl::Status status = Ask();
    MutexLock lock(&mutex_);
    ready_ = status.ok();
    waiting_for_ = std::string(status.message());
    if (ready_ || stopping_ ||
        mutex_.AwaitFor(std::chrono::milliseconds(kAskEveryMs),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
      break;
    }
  }
  // A connection that nobody uses would keep the router from ending at once.
  stub_.reset();
}

absl::Status ClusterWatch::Ask() {
  BATON_RETURN_IF_ERROR(AskForWorkers());
  return AskForReadiness();
}

absl::Status ClusterWatch::AskForWorkers() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kAnswerMs));
  // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
  // while the router does not listen yet, leave it to a poller that wakes every five seconds.
  context.set_wait_for_ready(true);
  v1::ListResponse response;
  if (!stub_->List(&context, {}, &response).ok()) {
    return absl::UnavailableError("the router does not answer");
  }
  std::vector<std::string> missing;
  for (const std::string& name : options_.workers) {
    const auto listed =
        std::find_if(response.workers().begin(), response.workers().end(),
                     [&](const auto& w) { return w.worker().instance().instance_id() == name; });
    if (listed == response.workers().end()) {
      missing.push_back(absl::StrCat(name, " has not registered"));
    } else if (!listed->ready()) {
      missing.push_back(absl::StrCat(name, " is not ready"));
    }
  }
  if (!missing.empty()) return absl::UnavailableError(absl::StrJoin(missing, ", "));
  MutexLock lock(&mutex_);
  workers_.assign(response.workers().begin(), response.workers().end());
  return absl::OkStatus();
}

namespace {

using Response = beast::http::response<beast::http::string_body>;

// `stream` is connected, and encrypted if it is to be. Only asynchronous operations heed the
// deadline; each handler starts the next one.
template <class Stream>
void Get(Stream& stream, const beast::http::request<beast::http::empty_body>& request,
         beast::flat_buffer& buffer, Response& response, beast::error_code& error) {
  beast::http::async_write(stream, request, [&](beast::error_code write_error, size_t) {
    error = write_error;
    if (error) return;
    beast::http::async_read(stream, buffer, response,
                            [&](beast::error_code read_error, size_t) { error = read_error; });
  });
}

}  // namespace

absl::Status ClusterWatch::AskForReadiness() const {
  boost::asio::io_context context{1};
  boost::asio::ssl::context tls(boost::asio::ssl::context::tls_client);
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  beast::tcp_stream& plain = stream.next_layer();
  beast::error_code error;
  beast::http::request<beast::http::empty_body> request(beast::http::verb::get, "/readiness", 11);
  request.set(beast::http::field::host, net::JoinHostPort(options_.host, options_.http_port));
  request.keep_alive(false);
  beast::flat_buffer buffer;
  Response response;
  const auto address = boost::asio::ip::make_address(options_.host, error);
  plain.expires_after(std::chrono::milliseconds(kAnswerMs));
  plain.async_connect(
      boost::asio::ip::tcp::endpoint(address, static_cast<uint16_t>(options_.http_port)),
      [&](beast::error_code connect_error) {
        error = connect_error;
        if (error) return;
        if (!options_.https) return Get(plain, request, buffer, response, error);
        stream.async_handshake(boost::asio::ssl::stream_base::client,
                               [&](beast::error_code handshake_error) {
                                 error = handshake_error;
                                 if (!error) Get(stream, request, buffer, response, error);
                               });
      });
  context.run();
  if (error) return absl::UnavailableError("the router's HTTP port does not answer");
  if (response.result() == beast::http::status::ok) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the router says: ", absl::StripAsciiWhitespace(response.body())));
}

}  // namespace baton
