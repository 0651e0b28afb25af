// What clients can't do to a server: hold its connections, its memory or its time; and how it
// notices that they left.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/http/http_server.h"
#include "common/http/server_context.h"
#include "common/http/testing/raw_client.h"
#include "common/http/testing/test_server.h"

namespace baton {
namespace {

void AllowManyFiles() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// ---- Connections ----

TEST(HttpLimitsTest, IdleConnectionsGiveWay) {
  HttpServerOptions options;
  options.max_connections = 20;
  TestServer server(options);
  std::vector<RawClient> idle;
  idle.reserve(500);
  for (int i = 0; i < 500; ++i) idle.emplace_back(server.port());
  RawClient late(server.port());
  late.Get("/health");
  EXPECT_EQ(late.Read().status, 200);
  EXPECT_TRUE(idle.front().AtEnd());
  EXPECT_LE(server.server().stats().connections, 20u);
}

TEST(HttpLimitsTest, AClientThatOpensManyLosesItsOwn) {
  HttpServerOptions options;
  options.max_connections = 20;
  TestServer server(options);
  RawClient quiet(server.port(), "127.0.0.2");
  quiet.Get("/a");
  EXPECT_EQ(quiet.Read().status, 200);
  std::vector<RawClient> flood;
  flood.reserve(500);
  for (int i = 0; i < 500; ++i) flood.emplace_back(server.port());
  RawClient last(server.port());
  last.Get("/b");
  EXPECT_EQ(last.Read().status, 200);
  quiet.Get("/a");  // It was the oldest, and is still here.
  EXPECT_EQ(quiet.Read().status, 200);
}

TEST(HttpLimitsTest, ProbesHaveRoomWhenAllConnectionsServe) {
  HttpServerOptions options;
  options.max_connections = 2;
  options.reserved_paths = {"/health"};
  TestServer server(options);
  std::vector<RawClient> busy;
  std::vector<HeldRequest> held;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back(server.port());
    busy.back().Post("/hold", "x");
    held.push_back(server.Next());
  }
  for (int i = 0; i < 5; ++i) {
    RawClient probe(server.port());
    probe.Get("/health");
    EXPECT_EQ(probe.Read().status, 200);
    RawClient other(server.port());
    other.Get("/other");
    const RawAnswer refused = other.Read();
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(refused.Has("Retry-After: "));
  }
  for (const HeldRequest& one : held) one.Respond("done");
  for (RawClient& client : busy) EXPECT_EQ(client.Read().body, "done");
}

TEST(HttpLimitsTest, AnAddressHasItsOwnLimit) {
  HttpServerOptions options;
  options.max_connections_per_address = 1;
  options.reserved_connections = 0;
  TestServer server(options);
  RawClient busy(server.port());
  busy.Post("/hold", "x");
  const HeldRequest held = server.Next();
  RawClient refused(server.port());
  EXPECT_TRUE(refused.AtEnd());
  RawClient other(server.port(), "127.0.0.2");
  other.Get("/");
  EXPECT_EQ(other.Read().status, 200);
  held.Respond("done");
  EXPECT_EQ(busy.Read().body, "done");
}

TEST(HttpLimitsTest, ServesAThousandStreamsAtOnce) {
  AllowManyFiles();
  constexpr int kStreams = 1000;
  TestServer server;
  std::vector<RawClient> clients;
  std::vector<HeldRequest> held;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port());
    ASSERT_TRUE(clients.back().connected());
    clients.back().Post("/hold", "");
  }
  for (int i = 0; i < kStreams; ++i) {
    held.push_back(server.Next());
    held.back().exchange->BeginEvents();
  }
  for (int step = 0; step < 3; ++step) {
    for (const HeldRequest& one : held) one.exchange->SendEvent(absl::StrCat("step ", step));
  }
  for (const HeldRequest& one : held) one.exchange->EndEvents();
  for (RawClient& client : clients) {
    const std::string text = client.ReadUntil("\r\n0\r\n\r\n");
    EXPECT_NE(text.find("step 0"), std::string::npos);
    EXPECT_NE(text.find("step 2"), std::string::npos);
  }
}

// ---- Time ----

TEST(HttpLimitsTest, SlowHeadersAndBodiesTimeOut) {
  HttpServerOptions options;
  options.receive_timeout_ms = 50;
  TestServer server(options);
  for (const std::string begun :
       {"GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nX: ",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"}) {
    RawClient client(server.port());
    client.Send(begun);
    EXPECT_EQ(client.Read().status, 408) << begun;
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST(HttpLimitsTest, IdleConnectionsAreClosedWithoutAWord) {
  HttpServerOptions options;
  options.idle_timeout_ms = 50;
  TestServer server(options);
  RawClient silent(server.port());
  EXPECT_EQ(silent.ReadAll(), "");
  RawAnswer answer;
  while (answer.status == 0) {  // This test may be too slow for the server's patience.
    RawClient once(server.port());
    once.Get("/");
    answer = once.Read();
    EXPECT_TRUE(once.AtEnd());
  }
  EXPECT_EQ(answer.status, 200);
}

TEST(HttpLimitsTest, AClientThatDoesNotReadIsCutOff) {
  HttpServerOptions options;
  options.send_timeout_ms = 50;
  TestServer server(options);
  RawClient client(server.port());
  client.Post("/hold", "");
  server.Next().Respond(std::string(size_t{64} << 20, 'x'));  // More than the kernel takes.
  AwaitTrue([&] { return server.server().stats().connections == 0; });
}

TEST(HttpLimitsTest, AStreamThatIsNotReadIsCutOffByItsSize) {
  TestServer server;
  RawClient client(server.port());
  client.Post("/hold", "");
  Notification gone;
  const HeldRequest held = server.Next();
  held.exchange->OnDisconnect([&gone] { gone.Notify(); });
  held.exchange->BeginEvents();
  for (int i = 0; i < 64; ++i) held.exchange->SendEvent(std::string(size_t{1} << 20, 'x'));
  gone.WaitForNotification();
}

// ---- Memory ----

TEST(HttpLimitsTest, BodiesInFlightAreBounded) {
  HttpServerOptions options;
  options.max_request_bytes = size_t{1} << 20;
  options.max_body_bytes_in_flight = size_t{3} << 20;
  TestServer server(options);
  const std::string header =
      absl::StrCat("POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: ", 1 << 20, "\r\n\r\n");
  // Announcements cost nothing; bytes do.
  std::vector<RawClient> announced;
  for (int i = 0; i < 10; ++i) {
    announced.emplace_back(server.port());
    announced.back().Send(header);
  }
  RawClient small(server.port());
  small.Post("/small", std::string(10'000, 'x'));
  EXPECT_EQ(small.Read().status, 200);
  for (RawClient& client : announced) client.Send(std::string((1 << 20) - 1, 'x'));
  // Three fit; which ones is theirs to race for.
  AwaitTrue([&] { return server.server().stats().refused_bodies == 7; });
  small.Post("/small", std::string(10'000, 'x'));
  EXPECT_EQ(small.Read().status, 200) << "large bodies must not shut out small ones";
  for (RawClient& client : announced) client.Send("x");
  int refused = 0;
  for (RawClient& client : announced) {
    const RawAnswer answer = client.Read();
    EXPECT_TRUE(answer.status == 200 || answer.status == 503) << answer.status;
    if (answer.status != 503) continue;
    EXPECT_TRUE(answer.Has("Retry-After: "));
    ++refused;
  }
  EXPECT_EQ(refused, 7);
  // Workers let go after they have answered.
  AwaitTrue([&] { return server.server().stats().body_bytes == 0; });
}

TEST(HttpLimitsTest, HandlersThatTakeLongHoldUpNobodysProbe) {
  Notification release;
  HttpServerOptions options;
  options.max_request_bytes = size_t{1} << 20;
  options.worker_threads = 2;
  options.takes_long = [](const HttpRequest& request) { return request.body == "long"; };
  const auto server =
      HttpServer::Start(options, [&](const HttpRequest& request, const auto& exchange) {
        if (request.path == "/slow") release.WaitForNotification();
        exchange->Respond({200, "text/plain", "ok"});
      });
  ASSERT_TRUE(server.ok());
  std::vector<RawClient> slow;
  for (int i = 0; i < 6; ++i) {
    slow.emplace_back((*server)->port());
    slow.back().Post("/slow", i % 2 == 0 ? std::string(500'000, 'x') : "long");
  }
  RawClient probe((*server)->port());
  probe.Get("/health");
  EXPECT_EQ(probe.Read().status, 200);
  probe.Post("/small", "large bodies leave it a thread");
  EXPECT_EQ(probe.Read().status, 200);
  release.Notify();
  for (RawClient& client : slow) EXPECT_EQ(client.Read().status, 200);
}

// ---- Leaving ----

// Waits for the server to notice; in vain, it ends by the test's own time limit.
void ExpectGone(TestServer& server, const std::function<void(RawClient&)>& leave,
                const std::string& request) {
  RawClient client(server.port());
  client.Send(request);
  Notification gone;
  const HeldRequest held = server.Next();
  held.exchange->OnDisconnect([&gone] { gone.Notify(); });
  leave(client);
  gone.WaitForNotification();
}

constexpr char kPost[] = "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";

TEST(HttpLimitsTest, NoticesThatAClientLeft) {
  TestServer server;
  ExpectGone(
      server, [](RawClient& client) { client.Close(); }, kPost);
  ExpectGone(
      server, [](RawClient& client) { client.Reset(); }, kPost);
  ExpectGone(
      server, [](RawClient& client) { client.Reset(); },
      "POST /hold HTTP/1.0\r\nContent-Length: 1\r\n\r\nx");
}

TEST(HttpLimitsTest, NoticesItWhateverTheClientSentBefore) {
  TestServer server;
  for (const size_t bytes : {1, 1000, 8'000'000}) {
    ExpectGone(
        server,
        [bytes](RawClient& client) {
          client.Send(std::string(bytes, 'x'));
          client.Close();
        },
        kPost);
  }
}

TEST(HttpLimitsTest, NoticesItInAStreamAndAfterTheFact) {
  TestServer server;
  RawClient client(server.port());
  client.Send(kPost);
  Notification gone;
  const HeldRequest held = server.Next();
  held.exchange->OnDisconnect([&gone] { gone.Notify(); });
  held.exchange->BeginEvents();
  held.exchange->SendEvent("one");
  client.ReadUntil("data: one");
  client.Close();
  gone.WaitForNotification();
  Notification late;
  held.exchange->OnDisconnect([&late] { late.Notify(); });
  late.WaitForNotification();
}

TEST(HttpLimitsTest, HalfClosedClientsGetTheirAnswers) {
  TestServer server;
  for (const std::string version : {"1.1", "1.0"}) {
    RawClient whole(server.port());
    whole.Send(
        absl::StrCat("POST /hold HTTP/", version, "\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"));
    const HeldRequest held = server.Next();
    whole.HalfClose();
    // The end has arrived once the server asks whether anybody is there; 1.0 is not asked.
    if (version == "1.1") {
      EXPECT_EQ(whole.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    }
    held.Respond("answer");
    EXPECT_EQ(whole.Read().body, "answer");
    EXPECT_TRUE(whole.AtEnd());
  }
  RawClient stream(server.port());
  stream.Send(kPost);
  const HeldRequest held = server.Next();
  held.exchange->BeginEvents();
  stream.HalfClose();
  stream.ReadUntil("\n:\n\n");  // A comment asks.
  held.exchange->SendEvent("one");
  held.exchange->EndEvents();
  EXPECT_NE(stream.ReadAll().find("data: one"), std::string::npos);
}

TEST(HttpLimitsTest, RequestsSentAheadOfAnEndAreAllAnswered) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\nGET /c HT");
  client.HalfClose();
  EXPECT_EQ(client.Read().body, "GET /a ");
  EXPECT_EQ(client.Read().body, "GET /b ");
  EXPECT_EQ(client.Read().status, 400);  // The third ends in the middle.
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpLimitsTest, WhatIsSentAheadIsBounded) {
  TestServer server;
  RawClient client(server.port());
  client.Send(kPost);
  const HeldRequest held = server.Next();
  client.Send(std::string(8'000'000, 'x'));  // Taken, or this would block; not kept.
  held.Respond("answer");
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.body, "answer");
  EXPECT_TRUE(answer.Has("Connection: close\r\n"));
}

}  // namespace
}  // namespace baton
