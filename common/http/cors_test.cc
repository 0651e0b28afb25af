#include "common/http/cors.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

HttpRequest From(const std::string& origin, const std::string& method = "POST") {
  HttpRequest request;
  request.method = method;
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return request;
}

TEST(CorsTest, ParsesOrigins) {
  EXPECT_FALSE(ParseCorsPolicy("")->enabled());
  EXPECT_TRUE(ParseCorsPolicy("*")->any_origin);
  const auto two = ParseCorsPolicy("https://a.example, http://localhost:5173");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->origins, (std::vector<std::string>{"https://a.example", "http://localhost:5173"}));
  for (const char* const bad : {"a.example", "https://", "https://a/", "https://a b", "://a"}) {
    EXPECT_EQ(ParseCorsPolicy(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(CorsTest, AllowsListedOriginsAlone) {
  const CorsPolicy policy = *ParseCorsPolicy("https://a.example");
  EXPECT_EQ(
      FindHeader(CorsHeaders(policy, From("https://a.example")), "access-control-allow-origin"),
      "https://a.example");
  const HttpHeaders other = CorsHeaders(policy, From("https://b.example"));
  EXPECT_EQ(FindHeader(other, "access-control-allow-origin"), "");
  EXPECT_EQ(FindHeader(other, "vary"), "Origin");
  EXPECT_EQ(FindHeader(CorsHeaders(*ParseCorsPolicy("*"), From("https://b.example")),
                       "access-control-allow-origin"),
            "*");
  EXPECT_TRUE(CorsHeaders({}, From("https://a.example")).empty());
}

TEST(CorsTest, AnswersPreflights) {
  const CorsPolicy policy = *ParseCorsPolicy("*");
  HttpRequest preflight = From("https://a.example", "OPTIONS");
  EXPECT_FALSE(AnswerPreflight(policy, preflight).has_value()) << "plain OPTIONS";
  preflight.headers.emplace_back("Access-Control-Request-Method", "POST");
  preflight.headers.emplace_back("Access-Control-Request-Headers", "authorization,content-type");
  const auto answer = AnswerPreflight(policy, preflight);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(FindHeader(answer->headers, "access-control-allow-headers"),
            "authorization,content-type");
  EXPECT_FALSE(AnswerPreflight({}, preflight).has_value());
  const auto stranger = AnswerPreflight(*ParseCorsPolicy("https://b.example"), preflight);
  ASSERT_TRUE(stranger.has_value());
  EXPECT_TRUE(stranger->headers.empty());
}

}  // namespace
}  // namespace baton
