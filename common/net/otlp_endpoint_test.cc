#include "common/net/otlp_endpoint.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace baton::net {
namespace {

TEST(OtlpEndpointTest, AcceptsWhatUsersWrite) {
  const std::pair<const char*, const char*> rows[] = {
      {"localhost:4317", "localhost:4317"},
      {"collector", "collector:4317"},
      {"http://collector:1234", "collector:1234"},
      {"http://collector:1234/", "collector:1234"},
      {"http://10.0.0.1", "10.0.0.1:4317"},
      {"[::1]:4317", "[::1]:4317"},
      {"[::1]", "[::1]:4317"},
  };
  for (const auto& [text, expected] : rows) {
    const auto endpoint = ParseOtlpEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(*endpoint, expected);
  }
}

TEST(OtlpEndpointTest, RefusesOtherText) {
  for (const char* text :
       {"https://collector:4317", "http://collector:4318/v1/traces", "unix:///x", "collector:port",
        "collector:0x50", ":4317", "collector:99999", "http://", "::1:4317"}) {
    const auto endpoint = ParseOtlpEndpoint(text);
    ASSERT_FALSE(endpoint.ok()) << text << " became " << *endpoint;
    EXPECT_NE(endpoint.status().message().find(text), std::string::npos);
  }
}

}  // namespace
}  // namespace baton::net
