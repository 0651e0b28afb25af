// Answers as clients on real sockets see them: RFC 9110, RFC 9112, streams. What a server bounds is
// in http_limits_test.cc.
#include "common/http/http_server.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/http/testing/raw_client.h"
#include "common/http/testing/test_server.h"

namespace baton {
namespace {

TEST(HttpServerTest, AnswersOneAfterTheOtherOnOneConnection) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.Post("/a?query", absl::StrCat("body", i));
    EXPECT_EQ(client.Read().body, absl::StrCat("POST /a body", i));
  }
  // Two at once are answered in order, and the last one closes.
  client.Send(
      "GET /x HTTP/1.1\r\nHost: x\r\n\r\nGET /y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /x ");
  const RawAnswer last = client.Read();
  EXPECT_EQ(last.body, "GET /y ");
  EXPECT_TRUE(last.Has("Connection: close\r\n"));
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpServerTest, EveryAnswerHasADateAndAnId) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine.1\r\n\r\n");
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.Has("X-Request-Id: mine.1\r\n"));
  EXPECT_TRUE(answer.Has("Date: ") && answer.Has(" GMT\r\n"));
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: not valid\r\n\r\n");
  const RawAnswer chosen = client.Read();
  EXPECT_TRUE(chosen.Has("X-Request-Id: "));
  EXPECT_FALSE(chosen.Has("not valid"));
  client.Send("GET / HTTP/1.1\r\n\r\n");
  const RawAnswer refused = client.Read();
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(refused.Has("X-Request-Id: "));
}

TEST(HttpServerTest, HeadAnswersWithTheHeaderOfGet) {
  TestServer server;
  RawClient client(server.port());
  client.Send("HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n");
  const RawAnswer head = client.Read(/*head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.Has("Content-Length: 9\r\n"));
  client.Get("/abc");  // The connection is still in step.
  EXPECT_EQ(client.Read().body, "GET /abc ");
  client.Send("HEAD /abc HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.ReadAll().find("Host header"), std::string::npos) << "refusals have no body";
}

TEST(HttpServerTest, RefusesAndCloses) {
  TestServer server;
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"GET / HTTP/1.1\r\n\r\n", 400},
           {"GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417},
           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n", 413},
           {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501},
           {"\x16\x03\x01 hello\r\n\r\n", 400}}) {
    RawClient client(server.port());
    client.Send(bytes);
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, status) << bytes;
    EXPECT_TRUE(answer.Has("Connection: close\r\n"));
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST(HttpServerTest, ARefusalReachesAClientThatIsStillSending) {
  TestServer server;
  RawClient client(server.port());
  client.Post("/", std::string(8'000'000, 'x'));
  EXPECT_EQ(client.Read().status, 413);
}

TEST(HttpServerTest, SaysContinueToClientsThatWaitForIt) {
  TestServer server;
  RawClient client(server.port());
  client.Send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  EXPECT_EQ(client.Read().body, "POST /a hi");
  // Not to one whose body is too large anyway.
  client.Send(
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("\r\n").starts_with("HTTP/1.1 413 "));
}

TEST(HttpServerTest, Http10ClosesUnlessAskedToStay) {
  TestServer server;
  RawClient once(server.port());
  once.Send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(once.Read().body, "GET / ");
  EXPECT_TRUE(once.AtEnd());
  RawClient stays(server.port());
  for (int i = 0; i < 2; ++i) {
    stays.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_TRUE(stays.Read().Has("Connection: keep-alive\r\n"));
  }
}

TEST(HttpServerTest, KeepsTheConnectionAfterAStream) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.Post("/hold", "");
    const HeldRequest held = server.Next();
    held.exchange->BeginEvents();
    held.exchange->SendEvent("one");
    held.exchange->SendEvent("two");
    held.exchange->EndEvents();
    const std::string text = client.ReadUntil("\r\n0\r\n\r\n");
    EXPECT_NE(text.find("Content-Type: text/event-stream\r\n"), std::string::npos);
    EXPECT_NE(text.find("b\r\ndata: one\n\n\r\n"), std::string::npos);
  }
  client.Get("/after");
  EXPECT_EQ(client.Read().body, "GET /after ");
}

TEST(HttpServerTest, AnAbortedStreamHasNoLastChunk) {
  TestServer server;
  RawClient client(server.port());
  client.Post("/hold", "");
  HeldRequest held = server.Next();
  held.exchange->BeginEvents();
  held.exchange->SendEvent("one");
  held.exchange->AbortEvents();
  std::string text = client.ReadAll();
  EXPECT_NE(text.find("data: one\n\n"), std::string::npos);
  EXPECT_EQ(text.find("0\r\n\r\n"), std::string::npos);
  // So has one whose handler lets go of it.
  RawClient other(server.port());
  other.Post("/hold", "");
  held = server.Next();
  held.exchange->BeginEvents();
  held.exchange.reset();
  EXPECT_EQ(other.ReadAll().find("0\r\n\r\n"), std::string::npos);
}

TEST(HttpServerTest, AStreamOfHttp10EndsWithItsConnection) {
  TestServer server;
  RawClient client(server.port());
  client.Send("POST /hold HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
  const HeldRequest held = server.Next();
  held.exchange->BeginEvents();
  held.exchange->SendEvent("one");
  held.exchange->EndEvents();
  const std::string text = client.ReadAll();
  EXPECT_EQ(text.find("chunked"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\n\r\ndata: one\n\n")) << text;
}

TEST(HttpServerTest, ARequestThatNobodyAnswersIsA500) {
  HttpServerOptions options;
  options.max_request_bytes = 1000;
  const auto server = HttpServer::Start(options, [](const HttpRequest& request, const auto&) {
    if (!request.body.empty()) throw std::runtime_error("of a library");
  });
  RawClient client((*server)->port());
  client.Get("/");
  EXPECT_EQ(client.Read().status, 500);
  client.Post("/", "x");
  EXPECT_EQ(client.Read().status, 500);
}

TEST(HttpServerTest, LateCallsDoNotTouchTheNextRequest) {
  TestServer server;
  RawClient client(server.port());
  client.Post("/hold", "1");
  const HeldRequest first = server.Next();
  first.Respond("first");
  EXPECT_EQ(client.Read().body, "first");
  client.Post("/hold", "2");
  const HeldRequest second = server.Next();
  first.Respond("late");
  first.exchange->BeginEvents();
  second.Respond("second");
  EXPECT_EQ(client.Read().body, "second");
}

TEST(HttpServerTest, BrowsersOfAllowedOriginsMayReadAnswers) {
  HttpServerOptions options;
  options.cors = *ParseCorsPolicy("https://a.example");
  TestServer server(options);
  RawClient client(server.port());
  client.Send(
      "OPTIONS /v1/x HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
      "authorization\r\n\r\n");
  const RawAnswer preflight = client.Read();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_TRUE(preflight.Has("Access-Control-Allow-Origin: https://a.example\r\n"));
  EXPECT_TRUE(preflight.Has("Access-Control-Allow-Headers: authorization\r\n"));
  client.Send("GET /v1/x HTTP/1.1\r\nHost: x\r\nOrigin: https://b.example\r\n\r\n");
  EXPECT_FALSE(client.Read().Has("Access-Control-Allow-Origin"));
  client.Send("POST /hold HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n\r\n");
  const HeldRequest held = server.Next();
  held.exchange->BeginEvents();
  held.exchange->EndEvents();
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("Access-Control-Allow-Origin: https://a.example"),
            std::string::npos);
}

TEST(HttpServerTest, StopsTakingRequestsButAnswersThoseItHas) {
  TestServer server;
  RawClient idle(server.port());
  idle.Get("/");
  idle.Read();
  RawClient busy(server.port());
  busy.Post("/hold", "x");
  const HeldRequest held = server.Next();
  server.server().StopListening();
  EXPECT_TRUE(idle.AtEnd());
  held.Respond("done");
  const RawAnswer answer = busy.Read();
  EXPECT_EQ(answer.body, "done");
  EXPECT_TRUE(answer.Has("Connection: close\r\n"));
}

TEST(HttpServerTest, ListensWhereItIsTold) {
  HttpServerOptions options;
  options.host = "no such host.invalid";
  const auto nowhere = HttpServer::Start(options, [](const auto&, const auto&) {});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(nowhere.status().message().find("no such host.invalid"), std::string::npos);
  TestServer first;
  options.host = "localhost";
  options.port = first.port();
  const auto taken = HttpServer::Start(options, [](const auto&, const auto&) {});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(absl::StrCat("localhost:", first.port())),
            std::string::npos);
}

}  // namespace
}  // namespace baton
