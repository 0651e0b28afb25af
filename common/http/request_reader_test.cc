#include "common/http/request_reader.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace baton {
namespace {

using Event = RequestReader::Event;

// Everything that `bytes` amount to, handed over in pieces of `piece` bytes.
std::vector<HttpRequest> ReadAll(RequestReader& reader, const std::string& bytes, size_t piece) {
  std::vector<HttpRequest> requests;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(bytes.substr(at, piece));
    while (true) {
      const Event event = reader.Read();
      if (event == Event::kRequest) requests.push_back(reader.Take());
      if (event == Event::kNeedMore) break;
      if (event == Event::kRefused) return requests;
    }
  }
  return requests;
}

// The status of a refusal; 0 if the request is taken, -1 if more is waited for.
int StatusOf(const std::string& bytes) {
  RequestReader reader(1000);
  reader.Append(bytes);
  while (true) {
    const Event event = reader.Read();
    if (event == Event::kRequest) return 0;
    if (event == Event::kNeedMore) return -1;
    if (event == Event::kRefused) return reader.refusal().status;
  }
}

TEST(RequestReaderTest, HowBytesAreCutChangesNothing) {
  const std::string bytes =
      "POST /v1/a%20b?x=%20y HTTP/1.1\r\nHost: h\r\nX-Request-Id: id-1\r\nContent-Length: 5\r\n\r\n"
      "hello\r\n"
      "PUT /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;extension=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
      "GET / HTTP/1.0\r\n\r\n";
  for (const size_t piece : {1, 2, 3, 7, 50, 1000}) {
    RequestReader reader(1000);
    const std::vector<HttpRequest> requests = ReadAll(reader, bytes, piece);
    ASSERT_EQ(requests.size(), 3u) << piece;
    EXPECT_EQ(requests[0].method, "POST");
    EXPECT_EQ(requests[0].path, "/v1/a b");
    EXPECT_EQ(requests[0].query, "x=%20y");
    EXPECT_EQ(requests[0].body, "hello");
    EXPECT_EQ(requests[0].request_id, "id-1");
    EXPECT_EQ(requests[0].Header("host"), "h");
    EXPECT_EQ(requests[1].body, "abcde");
    EXPECT_EQ(requests[1].request_id.size(), 32u);
    EXPECT_EQ(requests[2].path, "/");
    EXPECT_FALSE(reader.header().keep_alive);
    EXPECT_EQ(reader.buffered_bytes(), 0u);
  }
}

TEST(RequestReaderTest, RefusesWithTheStatusOfTheRfcs) {
  const std::string h = "Host: h\r\n";
  const std::map<std::string, int> rows = {
      {"GET / HTTP/1.1\r\n\r\n", 400},  // No Host.
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 0},
      {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 0},
      {"GET / HTTP/1.0\r\n\r\n", 0},
      {"GET / HTTP/2.0\r\n" + h + "\r\n", 505},
      {"GET / HTTP/9.9\r\n\r\n", 505},
      {"GET /\r\n\r\n", 400},
      {"\x16\x03\x01\x02 hello\r\n\r\n", 400},
      {"GET relative HTTP/1.1\r\n" + h + "\r\n", 400},
      {"GET * HTTP/1.1\r\n" + h + "\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\n" + h + "\r\n", 0},
      {"GET /%zz HTTP/1.1\r\n" + h + "\r\n", 400},
      {"GET /%00 HTTP/1.1\r\n" + h + "\r\n", 400},
      {"GET /% HTTP/1.1\r\n" + h + "\r\n", 400},
      {"CONNECT h:80 HTTP/1.1\r\n" + h + "\r\n", 501},
      {"BREW /pot HTTP/1.1\r\n" + h + "\r\n", 501},
      {"GET / HTTP/1.1\r\n" + h + "Expect: a-miracle\r\n\r\n", 417},
      {"GET / HTTP/1.0\r\nExpect: a-miracle\r\n\r\n", 0},
      {"POST / HTTP/1.1\r\n" + h + "Expect: 100-Continue\r\nContent-Length: 0\r\n\r\n", 0},
      // What two parties could read differently.
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3x\r\n\r\nabc", 400},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\n" + h + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" +
           std::string(1001, 'x'),
       413},
      {"GET / HTTP/1.1\r\n" + h + "X: " + std::string(20000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(20000, 'x'), 431},
      {"GET / HTTP/1.1\r\n" + h + "X : y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + h + "no colon\r\n\r\n", 400},
      // Incomplete.
      {"GET / HTTP/1.1\r\n" + h, -1},
      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 5\r\n\r\nabc", -1},
      {"\r\n\r\n", -1},
  };
  for (const auto& [bytes, status] : rows) {
    EXPECT_EQ(StatusOf(bytes), status) << bytes.substr(0, 120);
  }
}

TEST(RequestReaderTest, ReadsAbsoluteTargets) {
  for (const std::string target : {"http://h/v1/models?a=b", "HTTPS://user-h:8080/v1/models?a=b"}) {
    RequestReader reader(1000);
    const auto requests =
        ReadAll(reader, absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: h\r\n\r\n"), 1000);
    ASSERT_EQ(requests.size(), 1u) << target;
    EXPECT_EQ(requests[0].path, "/v1/models");
    EXPECT_EQ(requests[0].query, "a=b");
  }
  RequestReader reader(1000);
  EXPECT_EQ(ReadAll(reader, "GET http://h?q HTTP/1.1\r\nHost: h\r\n\r\n", 9)[0].path, "/");
  EXPECT_EQ(StatusOf("GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

TEST(RequestReaderTest, HeadIsAGetWithoutABody) {
  RequestReader reader(1000);
  const auto requests = ReadAll(reader, "HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n", 1000);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].method, "GET");
  EXPECT_TRUE(reader.header().head);
}

TEST(RequestReaderTest, TakesNoRequestIdThatCouldDoHarm) {
  for (const std::string id : {"", "with space", "a,b", "\"quoted\"", "\xc3\xa9"}) {
    RequestReader reader(1000);
    const auto requests = ReadAll(
        reader, absl::StrCat("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: ", id, "\r\n\r\n"), 1000);
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_EQ(requests[0].request_id.size(), 32u) << id;
  }
  RequestReader reader(1000);
  EXPECT_EQ(
      ReadAll(reader,
              "GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: " + std::string(101, 'a') + "\r\n\r\n",
              1000)[0]
          .request_id.size(),
      32u);
}

// Whatever comes, the reader ends in a state it knows and holds no more than it was given.
TEST(RequestReaderTest, SurvivesAnyBytes) {
  const std::string good =
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
  Random random(1);
  for (int round = 0; round < 5'000; ++round) {
    std::string bytes = good;
    for (uint64_t flips = 1 + random.Below(6); flips > 0; --flips) {
      const size_t at = random.Below(bytes.size());
      switch (random.Below(3)) {
        case 0:
          bytes[at] = static_cast<char>(random.Below(256));
          break;
        case 1:
          bytes.erase(at, 1 + random.Below(4));
          break;
        default:
          bytes.insert(at, bytes.substr(random.Below(bytes.size()), random.Below(8)));
      }
      if (bytes.empty()) bytes = "x";
    }
    RequestReader reader(1000);
    for (const HttpRequest& request : ReadAll(reader, bytes, 1 + random.Below(bytes.size()))) {
      EXPECT_LE(request.body.size(), 1000u);
    }
    EXPECT_LE(reader.buffered_bytes(), bytes.size());
  }
}

}  // namespace
}  // namespace baton
