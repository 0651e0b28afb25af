#include "common/telemetry/http_endpoint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/http/testing/raw_client.h"

namespace baton {
namespace {

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

RawAnswer Ask(const HttpEndpoint& endpoint, const std::string& method, const std::string& path) {
  RawClient client(endpoint.port());
  client.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: baton\r\n\r\n"));
  return client.Read(/*head=*/method == "HEAD");
}

TEST_F(HttpEndpointTest, ServesTheThreePaths) {
  const auto endpoint = Start();
  EXPECT_NE(endpoint->port(), 0);
  const RawAnswer metrics = Ask(*endpoint, "GET", "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_TRUE(metrics.Has("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_EQ(metrics.body, "baton_up 1\n");
  EXPECT_EQ(Ask(*endpoint, "GET", "/metrics?name=x").status, 200);
  EXPECT_EQ(Ask(*endpoint, "GET", "/health").body, "ok\n");
  const RawAnswer loading = Ask(*endpoint, "GET", "/readiness");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(loading.body, "loading weights: 40%\n");
  ready_ = true;
  EXPECT_EQ(Ask(*endpoint, "GET", "/readiness").status, 200);
}

TEST_F(HttpEndpointTest, RefusesEverythingElse) {
  const auto endpoint = Start();
  EXPECT_EQ(Ask(*endpoint, "GET", "/").status, 404);
  EXPECT_EQ(Ask(*endpoint, "GET", "/metrics/x").status, 404);
  const RawAnswer post = Ask(*endpoint, "POST", "/metrics");
  EXPECT_EQ(post.status, 405);
  EXPECT_TRUE(post.Has("Allow: GET, HEAD, OPTIONS\r\n"));
  EXPECT_EQ(Ask(*endpoint, "OPTIONS", "/health").status, 204);
  RawClient body(endpoint->port());
  body.Post("/metrics", "a body");
  EXPECT_EQ(body.Read().status, 413);
  EXPECT_EQ(Ask(*endpoint, "GET", "/health").status, 200);
}

TEST_F(HttpEndpointTest, HeadAnswersWithoutABody) {
  const auto endpoint = Start();
  RawClient client(endpoint->port());
  client.Send("HEAD /metrics HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n");
  const RawAnswer head = client.Read(/*head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.Has("Content-Length: 11\r\n"));
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpEndpointTest, AlwaysHasRoomForAnotherProbe) {
  const auto endpoint = Start({.max_connections = 4, .idle_timeout_ms = 600000});
  std::vector<RawClient> idle;
  idle.reserve(100);
  for (int i = 0; i < 100; ++i) idle.emplace_back(endpoint->port());
  EXPECT_EQ(Ask(*endpoint, "GET", "/health").status, 200);
  EXPECT_TRUE(idle.front().AtEnd());
}

TEST_F(HttpEndpointTest, EndsWithOpenConnections) {
  auto endpoint = Start({.idle_timeout_ms = 600000});
  RawClient idle(endpoint->port());
  RawClient active(endpoint->port());
  active.Get("/metrics");
  EXPECT_EQ(active.Read().status, 200);
  endpoint.reset();
  EXPECT_TRUE(active.AtEnd());
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(HttpEndpointTest, SaysWhyItCannotListen) {
  const auto endpoint = Start();
  const auto taken = HttpEndpoint::Start({.port = endpoint->port()}, {});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(absl::StrCat("127.0.0.1:", endpoint->port())),
            std::string::npos);
}

}  // namespace
}  // namespace baton
