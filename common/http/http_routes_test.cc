#include <gtest/gtest.h>

#include "common/http/http_handler.h"

namespace baton {
namespace {

class Recorder : public HttpExchange {
 public:
  void Respond(HttpResponse reply) override { response = std::move(reply); }
  void ExpectEvents(EventTimes) override {}
  void BeginEvents() override {}
  void SendEvent(HttpEvent) override {}
  void EndEvents() override {}
  void RespondOrEnd(HttpResponse, std::vector<HttpEvent>) override {}
  void AbortEvents() override {}
  void OnDisconnect(std::function<void()>) override {}
  void Run(std::function<void()>) override {}

  HttpResponse response;
};

HttpHandler Says(const std::string& what) {
  return [what](const HttpRequest&, const auto& exchange) {
    exchange->Respond({200, "text/plain", what});
  };
}

HttpResponse Ask(const HttpRoutes& routes, const std::string& method, const std::string& path) {
  HttpRequest request;
  request.method = method;
  request.path = path;
  const auto recorder = std::make_shared<Recorder>();
  routes.Handle(request, recorder);
  return recorder->response;
}

TEST(HttpRoutesTest, FindsHandlersAndNamesWhatIsAllowed) {
  HttpRoutes routes(PlainHttpError);
  routes.Add("GET", "/models/*", Says("one model"));
  routes.Add("GET", "/models", Says("models"));
  routes.Add("GET", "/models/first", Says("the first model"));
  routes.Add("POST", "/generate", Says("text"));
  routes.Add("GET", "/generate", Says("form"));
  EXPECT_EQ(Ask(routes, "GET", "/models").body, "models");
  EXPECT_EQ(Ask(routes, "GET", "/models/a/b").body, "one model");
  EXPECT_EQ(Ask(routes, "GET", "/models/first").body, "the first model") << "whole paths first";
  EXPECT_EQ(Ask(routes, "POST", "/generate").body, "text");
  EXPECT_EQ(Ask(routes, "GET", "/generate").body, "form");
  EXPECT_EQ(Ask(routes, "GET", "/nowhere").status, 404);
  EXPECT_EQ(Ask(routes, "GET", "/models/").status, 200);
  EXPECT_EQ(Ask(routes, "GET", "/model").status, 404);

  const HttpResponse wrong = Ask(routes, "DELETE", "/generate");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(FindHeader(wrong.headers, "allow"), "GET, HEAD, OPTIONS, POST");
  const HttpResponse options = Ask(routes, "OPTIONS", "/models");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(FindHeader(options.headers, "allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(FindHeader(Ask(routes, "OPTIONS", "*").headers, "allow"), "GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(Ask(routes, "OPTIONS", "/nowhere").status, 404);
}

}  // namespace
}  // namespace baton
