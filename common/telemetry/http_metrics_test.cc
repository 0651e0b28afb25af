#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/http/testing/raw_client.h"
#include "common/http/testing/test_server.h"
#include "common/telemetry/http_endpoint.h"

namespace baton {
namespace {

// The value of a series, labels beside the identity's included; a missing one is a failure.
double Value(Metrics& metrics, const std::string& name, const std::string& label = "") {
  const std::string text = metrics.Scrape();
  for (size_t at = text.find("\n" + name); at != std::string::npos;
       at = text.find("\n" + name, at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.find(label) != std::string::npos) return std::stod(line.substr(line.rfind(' ')));
  }
  ADD_FAILURE() << name << " " << label << " is not exported";
  return -1;
}

class HttpMetricsTest : public testing::Test {
 protected:
  HttpServerOptions Options() {
    HttpServerOptions options;
    options.observer = CountConnections(metrics_);
    return options;
  }
  double Open() { return Value(metrics_, "baton_http_connections_open{"); }
  double Accepted() { return Value(metrics_, "baton_http_connections_accepted_total{"); }
  double Evicted() { return Value(metrics_, "baton_http_connections_evicted_total{"); }
  double Refused(const std::string& reason) {
    return Value(metrics_, "baton_http_refused_total{", "reason=\"" + reason + "\"");
  }

  Metrics metrics_{{.role = MetricRole::kRouter, .model_name = "tiny", .instance_id = "router-0"}};
};

TEST_F(HttpMetricsTest, ConnectionsComeAndGo) {
  TestServer server(Options());
  {
    RawClient one(server.port());
    RawClient other(server.port());
    one.Get("/a");
    other.Get("/b");
    EXPECT_EQ(one.Read().status, 200);
    EXPECT_EQ(other.Read().status, 200);
    EXPECT_EQ(Open(), 2);
  }
  AwaitTrue([&] { return Open() == 0; });
  EXPECT_EQ(Accepted(), 2);
  EXPECT_EQ(Evicted(), 0);
}

TEST_F(HttpMetricsTest, WhoGivesWayIsClosedOnce) {
  HttpServerOptions options = Options();
  options.max_connections = 3;
  {
    TestServer server(options);
    std::vector<RawClient> idle;
    idle.reserve(10);
    for (int i = 0; i < 10; ++i) idle.emplace_back(server.port());
    RawClient late(server.port());
    late.Get("/a");
    EXPECT_EQ(late.Read().status, 200);
    EXPECT_EQ(Accepted(), 11);
    EXPECT_EQ(Evicted(), 8);
    EXPECT_EQ(Open(), 3);
  }
  EXPECT_EQ(Refused("connections"), 0);
}

TEST_F(HttpMetricsTest, WhatFindsNoRoomIsCounted) {
  HttpServerOptions options = Options();
  options.max_connections = 1;
  options.reserved_connections = 1;
  options.reserved_paths = {"/health"};
  options.max_request_bytes = size_t{1} << 20;
  options.max_body_bytes_in_flight = 1;
  TestServer server(options);
  {
    RawClient large(server.port());
    large.Post("/a", std::string(500'000, 'x'));
    EXPECT_EQ(large.Read().status, 503);
    EXPECT_EQ(Refused("body_memory"), 1);
  }
  AwaitTrue([&] { return Open() == 0; });
  RawClient busy(server.port());
  busy.Post("/hold", "x");
  const HeldRequest held = server.Next();
  RawClient turned_away(server.port());
  turned_away.Get("/other");
  EXPECT_EQ(turned_away.Read().status, 503);
  EXPECT_EQ(Refused("connections"), 1);
  held.Respond("done");
  EXPECT_EQ(busy.Read().body, "done");
}

}  // namespace
}  // namespace baton
