#include "services/baton/start_probes.h"

#include <grpcpp/grpcpp.h>

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
#include "common/net/host.h"
#include "common/rpc/channel.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/baton/child_pipes.h"

namespace baton {
namespace {

namespace beast = boost::beast;
using Response = beast::http::response<beast::http::string_body>;

// One answer; who gives it is on this machine.
constexpr int kAnswerMs = 1000;
constexpr int kReconnectMs = 100;
constexpr int kAskRouterEveryMs = 25;
constexpr int kAskWorkersEveryMs = 100;
// Once all have loaded: other nodes may take hours to come.
constexpr int kAskWaitingEveryMs = 500;

struct HttpTarget {
  std::string host;  // Numeric.
  int port = 0;
  bool https = false;  // The certificate is not looked at: it is this machine's own process.
};

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

// UNAVAILABLE without an answer.
absl::StatusOr<Response> HttpGet(const HttpTarget& target, const std::string& path) {
  boost::asio::io_context context{1};
  boost::asio::ssl::context tls(boost::asio::ssl::context::tls_client);
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  beast::tcp_stream& plain = stream.next_layer();
  beast::error_code error;
  beast::http::request<beast::http::empty_body> request(beast::http::verb::get, path, 11);
  request.set(beast::http::field::host, net::JoinHostPort(target.host, target.port));
  request.keep_alive(false);
  beast::flat_buffer buffer;
  Response response;
  const auto address = boost::asio::ip::make_address(target.host, error);
  plain.expires_after(std::chrono::milliseconds(kAnswerMs));
  plain.async_connect(boost::asio::ip::tcp::endpoint(address, static_cast<uint16_t>(target.port)),
                      [&](beast::error_code connect_error) {
                        error = connect_error;
                        if (error) return;
                        if (!target.https) return Get(plain, request, buffer, response, error);
                        stream.async_handshake(boost::asio::ssl::stream_base::client,
                                               [&](beast::error_code handshake_error) {
                                                 error = handshake_error;
                                                 if (!error)
                                                   Get(stream, request, buffer, response, error);
                                               });
                      });
  context.run();
  if (error) return absl::UnavailableError(error.message());
  return response;
}

std::string BodyOf(const Response& response) {
  return std::string(absl::StripAsciiWhitespace(response.body()));
}

class ClusterProbe {
 public:
  ClusterProbe(const LaunchPlan& plan, std::shared_ptr<const rpc::ClusterSecurity> security)
      : http_{plan.local_host, plan.router->http_port, !plan.router->certificate.empty()},
        groups_(plan.groups),
        stub_(v1::Cluster::NewStub(rpc::OpenChannel(
            net::JoinHostPort(plan.router->cluster_host, plan.router->cluster_port),
            {.max_reconnect_ms = kReconnectMs,
             .max_receive_bytes = -1,
             .security = std::move(security),
             .peers = {{rpc::PeerRole::kRouter, ""}}}))) {}

  StartView Look(const Incarnations& listening) const {
    StartView view;
    view.look_again_ms = kAskRouterEveryMs;
    view.known = AskForWorkers(listening, view);
    if (view.known && view.missing.empty()) AskForReadiness(view);
    view.started = view.missing.empty();
    return view;
  }

 private:
  bool AskForWorkers(const Incarnations& listening, StartView& view) const {
    if (!listening.contains(kRouterName)) {
      view.missing = {"the router does not listen"};
      return false;
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kAnswerMs));
    // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
    // while the router does not listen yet, leave it to a poller that wakes every five seconds.
    context.set_wait_for_ready(true);
    v1::ListResponse response;
    if (!stub_->List(&context, {}, &response).ok()) {
      view.missing = {"the router does not answer"};
      return false;
    }
    for (const v1::ListedWorker& listed : response.workers()) {
      const v1::InstanceRef& instance = listed.worker().instance();
      const auto own = listening.find(instance.instance_id());
      if (own == listening.end() || own->second != instance.incarnation()) continue;
      view.states[instance.instance_id()] = listed.ready() ? StartState::kReady : StartState::kHere;
    }
    for (const StartingGroup& group : groups_) {
      for (const std::string& name : group.names) {
        const auto state = view.states.find(name);
        if (state == view.states.end()) {
          view.missing.push_back(absl::StrCat(name, " has not registered"));
        } else if (state->second != StartState::kReady) {
          view.missing.push_back(absl::StrCat(name, " is not ready"));
        }
      }
    }
    view.workers.assign(response.workers().begin(), response.workers().end());
    return true;
  }

  void AskForReadiness(StartView& view) const {
    const auto answer = HttpGet(http_, "/readiness");
    if (!answer.ok()) {
      view.missing = {"the router's HTTP port does not answer"};
    } else if (answer->result_int() != 200) {
      view.missing = {absl::StrCat("the router says: ", BodyOf(*answer))};
    }
  }

  const HttpTarget http_;
  const std::vector<StartingGroup> groups_;
  const std::unique_ptr<v1::Cluster::Stub> stub_;
};

}  // namespace

LookAtStart LookAtCluster(const LaunchPlan& plan,
                          std::shared_ptr<const rpc::ClusterSecurity> security) {
  auto probe = std::make_shared<const ClusterProbe>(plan, std::move(security));
  return [probe](const Incarnations& listening) { return probe->Look(listening); };
}

LookAtStart LookAtNode(const LaunchPlan& plan) {
  return [host = plan.local_host, ports = plan.metrics_ports](const Incarnations& listening) {
    StartView view;
    view.started = true;
    for (const auto& [name, port] : ports) {
      absl::StatusOr<Response> answer = absl::UnavailableError("it does not listen");
      if (listening.contains(name)) answer = HttpGet({host, port}, "/readiness");
      const std::string said = answer.ok() ? BodyOf(*answer) : "";
      if (!answer.ok() || said == kLoadingText) {
        view.started = false;
        view.missing.push_back(absl::StrCat(name, " has not loaded"));
      } else if (answer->result_int() != 200) {
        view.states[name] = StartState::kHere;
        view.missing.push_back(absl::StrCat(name, ": ", said));
      } else {
        view.states[name] = StartState::kReady;
      }
    }
    view.look_again_ms = view.started ? kAskWaitingEveryMs : kAskWorkersEveryMs;
    return view;
  };
}

}  // namespace baton
