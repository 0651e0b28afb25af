#include "common/telemetry/http_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client that sends exactly the bytes it is given.
class RawClient {
 public:
  explicit RawClient(const HttpEndpoint& endpoint) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), endpoint.port()});
  }

  // Errors are ignored: the server may have closed already, and the answer tells.
  void Send(const std::string& bytes) {
    error_code error;
    asio::write(socket_, asio::buffer(bytes), error);
  }

  // Everything until the server closes.
  std::string ReadAll() {
    std::string answer;
    error_code error;
    asio::read(socket_, asio::dynamic_buffer(answer), error);
    return answer;
  }

  // Up to and including `end`; what is there if the server closes first.
  std::string ReadUntil(const std::string& end) {
    std::string answer;
    error_code error;
    asio::read_until(socket_, asio::dynamic_buffer(answer), end, error);
    return answer;
  }

 private:
  asio::io_context context_;
  tcp::socket socket_{context_};
};

class HttpEndpointTest : public testing::Test {
 protected:
  std::unique_ptr<HttpEndpoint> Start(const HttpEndpointConfig& config = {}) {
    auto endpoint = HttpEndpoint::Start(
        config, {.metrics = [] { return std::string("baton_up 1\n"); },
                 .liveness = [] { return absl::OkStatus(); },
                 .readiness =
                     [this] {
                       return ready_ ? absl::OkStatus()
                                     : absl::UnavailableError("loading weights: 40%");
                     }});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return *std::move(endpoint);
  }

  std::atomic<bool> ready_{false};
};

std::string Ask(const HttpEndpoint& endpoint, const std::string& request) {
  RawClient client(endpoint);
  client.Send(request);
  return client.ReadAll();
}

std::string Get(const HttpEndpoint& endpoint, const std::string& path,
                const std::string& method = "GET") {
  return Ask(endpoint, absl::StrCat(method, " ", path,
                                    " HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n"));
}

TEST_F(HttpEndpointTest, ServesTheThreePaths) {
  const auto endpoint = Start();
  EXPECT_NE(endpoint->port(), 0);
  const std::string metrics = Get(*endpoint, "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(metrics, EndsWith("\r\n\r\nbaton_up 1\n"));
  EXPECT_THAT(Get(*endpoint, "/metrics?name=x"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(*endpoint, "/health"), StartsWith("HTTP/1.1 200"));
  const std::string loading = Get(*endpoint, "/readiness");
  EXPECT_THAT(loading, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(loading, EndsWith("loading weights: 40%\n"));
  ready_ = true;
  EXPECT_THAT(Get(*endpoint, "/readiness"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, RefusesEverythingElse) {
  const auto endpoint = Start();
  EXPECT_THAT(Get(*endpoint, "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(*endpoint, "/metrics/x"), StartsWith("HTTP/1.1 404"));
  const std::string post = Get(*endpoint, "/metrics", "POST");
  EXPECT_THAT(post, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(post, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_THAT(Get(*endpoint, "/health", "DELETE"), StartsWith("HTTP/1.1 405"));
  for (const char* const garbage : {"nonsense\r\n\r\n", "GET /health\r\n\r\n", "\x16\x03\x01\r\n",
                                    "GET /health HTTP/9.9\r\n\r\n"}) {
    EXPECT_THAT(Ask(*endpoint, garbage), StartsWith("HTTP/1.1 400")) << garbage;
  }
  EXPECT_THAT(Get(*endpoint, "/health"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, OversizedRequestsEndTheirConnectionAlone) {
  const auto endpoint = Start();
  const std::string header = absl::StrCat("X: ", std::string(100000, 'x'), "\r\n\r\n");
  EXPECT_EQ(Ask(*endpoint, "GET /health HTTP/1.1\r\n" + header).find("200 OK"), std::string::npos);
  const std::string body = "GET /health HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
  EXPECT_EQ(Ask(*endpoint, body).find("200 OK"), std::string::npos);
  EXPECT_THAT(Get(*endpoint, "/health"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, HeadAnswersWithoutABody) {
  const auto endpoint = Start();
  const std::string head = Get(*endpoint, "/metrics", "HEAD");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
}

TEST_F(HttpEndpointTest, KeepsConnectionsAlive) {
  const auto endpoint = Start();
  RawClient client(*endpoint);
  for (int i = 0; i < 3; ++i) {
    client.Send("GET /metrics HTTP/1.1\r\nHost: baton\r\n\r\n");
    EXPECT_THAT(client.ReadUntil("baton_up 1\n"), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(HttpEndpointTest, ConnectionsAreBounded) {
  const auto endpoint = Start({.max_connections = 2, .idle_timeout_ms = 600000});
  const std::string request = "GET /health HTTP/1.1\r\nHost: baton\r\n\r\n";
  auto first = std::make_unique<RawClient>(*endpoint);
  RawClient second(*endpoint);
  for (RawClient* client : {first.get(), &second}) {
    client->Send(request);
    EXPECT_THAT(client->ReadUntil("ok\n"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_EQ(RawClient(*endpoint).ReadAll(), "");
  first.reset();
  // The server sees the end of the first connection soon; until then newcomers are closed.
  while (Get(*endpoint, "/health").empty()) {
  }
}

TEST_F(HttpEndpointTest, IdleConnectionsAreClosed) {
  const auto endpoint = Start({.idle_timeout_ms = 1});
  RawClient client(*endpoint);
  client.Send("GET /hea");
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(HttpEndpointTest, EndsWithOpenConnections) {
  auto endpoint = Start({.idle_timeout_ms = 600000});
  RawClient idle(*endpoint);
  RawClient active(*endpoint);
  active.Send("GET /metrics HTTP/1.1\r\nHost: baton\r\n\r\n");
  EXPECT_THAT(active.ReadUntil("baton_up 1\n"), StartsWith("HTTP/1.1 200"));
  endpoint.reset();
  EXPECT_EQ(active.ReadAll(), "");
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST_F(HttpEndpointTest, SaysWhyItCannotListen) {
  const auto endpoint = Start();
  const auto taken = HttpEndpoint::Start({.port = endpoint->port()}, {});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", endpoint->port())));
  const auto no_address = HttpEndpoint::Start({.host = "no address"}, {});
  EXPECT_EQ(no_address.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
