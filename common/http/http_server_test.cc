#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sync.h"

namespace baton {
namespace {

// A blocking client connection; reads time out so that a mistake fails instead of hanging.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval timeout{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { Close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Client(const Client&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Send(const std::string& text) {
    ASSERT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  void Post(const std::string& path, const std::string& body) {
    Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body));
  }
  // Everything up to and including `until`, or up to the end of the connection.
  std::string ReadUntil(const std::string& until) {
    std::string text;
    char buffer[4096];
    while (text.find(until) == std::string::npos) {
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  bool AtEnd() {
    char byte;
    return recv(fd_, &byte, 1, 0) == 0;
  }

 private:
  int fd_;
  bool connected_ = false;
};

HttpServerOptions Options() {
  HttpServerOptions options;
  options.max_request_bytes = 1000;
  return options;
}

std::unique_ptr<HttpServer> Echo() {
  auto server = HttpServer::Start(Options(), [](const HttpRequest& request, const auto& exchange) {
    HttpResponse response;
    response.body = absl::StrCat(request.method, " ", request.path, " ", request.body);
    exchange->Respond(std::move(response));
  });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServerTest, AnswersOneAfterTheOtherOnOneConnection) {
  const auto server = Echo();
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.Post("/a?query", absl::StrCat("body", i));
    EXPECT_NE(client.ReadUntil(absl::StrCat("body", i)).find("POST /a body"), std::string::npos);
  }
  // Two requests at once are answered in order.
  client.Send(
      "GET /x HTTP/1.1\r\nHost: x\r\n\r\nGET /y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string both = client.ReadUntil("no such text");
  EXPECT_LT(both.find("GET /x"), both.find("GET /y"));
  EXPECT_NE(both.find("GET /y"), std::string::npos);
}

TEST(HttpServerTest, RefusesWhatIsTooLargeOrMalformed) {
  const auto server = Echo();
  Client large(server->port());
  large.Post("/a", std::string(2000, 'x'));
  EXPECT_NE(large.ReadUntil("}}").find(" 413 "), std::string::npos);
  Client garbage(server->port());
  garbage.Send("\x16\x03\x01 hello\r\n\r\n");
  EXPECT_NE(garbage.ReadUntil("}}").find(" 400 "), std::string::npos);
  Client header(server->port());
  header.Send("GET / HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n");
  EXPECT_NE(header.ReadUntil("}}").find(" 431 "), std::string::npos);
}

TEST(HttpServerTest, SaysContinueToClientsThatWaitForIt) {
  const auto server = Echo();
  Client client(server->port());
  client.Send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_NE(client.ReadUntil("\r\n\r\n").find("100 Continue"), std::string::npos);
  client.Send("hi");
  EXPECT_NE(client.ReadUntil("hi").find("POST /a hi"), std::string::npos);
}

TEST(HttpServerTest, TellsWhenTheClientLeaves) {
  Notification gone;
  const auto server =
      HttpServer::Start(Options(), [&gone](const HttpRequest&, const auto& exchange) {
        exchange->OnDisconnect([&gone] { gone.Notify(); });
      });
  Client client((*server)->port());
  client.Post("/a", "x");
  client.Close();
  gone.WaitForNotification();  // In vain, it ends by the test's own time limit.
}

TEST(HttpServerTest, AnAbortedStreamHasNoLastChunk) {
  const auto server =
      HttpServer::Start(Options(), [](const HttpRequest& request, const auto& exchange) {
        exchange->BeginEvents();
        exchange->SendEvent("one");
        if (request.path == "/whole") {
          exchange->EndEvents();
        } else {
          exchange->AbortEvents();
        }
      });
  Client whole((*server)->port());
  whole.Post("/whole", "");
  EXPECT_NE(whole.ReadUntil("0\r\n\r\n").find("data: one\n\n"), std::string::npos);
  Client cut((*server)->port());
  cut.Post("/cut", "");
  const std::string text = cut.ReadUntil("no such text");
  EXPECT_NE(text.find("data: one\n\n"), std::string::npos);
  EXPECT_EQ(text.find("0\r\n\r\n"), std::string::npos);
}

TEST(HttpServerTest, BoundsConnections) {
  HttpServerOptions options = Options();
  options.max_connections = 2;
  const auto server = HttpServer::Start(options, [](const HttpRequest&, const auto& exchange) {
    exchange->Respond(HttpResponse{200, "text/plain", "ok"});
  });
  Client first((*server)->port());
  first.Post("/", "");
  first.ReadUntil("ok");
  Client second((*server)->port());
  second.Post("/", "");
  second.ReadUntil("ok");
  Client third((*server)->port());
  EXPECT_NE(third.ReadUntil("}}").find(" 503 "), std::string::npos);
  EXPECT_TRUE(third.AtEnd());
}

TEST(HttpServerTest, ServesAThousandStreamsAtOnce) {
  constexpr int kStreams = 1000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 4096));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  Mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> open;
  const auto server = HttpServer::Start(Options(), [&](const HttpRequest&, const auto& exchange) {
    exchange->BeginEvents();
    MutexLock lock(&mutex);
    open.push_back(exchange);
  });
  std::vector<Client> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back((*server)->port());
    ASSERT_TRUE(clients.back().connected());
    clients.back().Post("/", "");
  }
  {
    MutexLock lock(&mutex);
    mutex.Await([&open] { return open.size() == kStreams; });
  }
  for (int step = 0; step < 3; ++step) {
    MutexLock lock(&mutex);
    for (const auto& exchange : open) exchange->SendEvent(absl::StrCat("step ", step));
  }
  {
    MutexLock lock(&mutex);
    for (const auto& exchange : open) exchange->EndEvents();
    open.clear();
  }
  for (Client& client : clients) {
    const std::string text = client.ReadUntil("0\r\n\r\n");
    EXPECT_NE(text.find("step 0"), std::string::npos);
    EXPECT_NE(text.find("step 2"), std::string::npos);
  }
}

TEST(HttpServerTest, RefusesAHostThatIsNoAddress) {
  HttpServerOptions options = Options();
  options.host = "not an address";
  EXPECT_EQ(HttpServer::Start(options, [](const auto&, const auto&) {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
