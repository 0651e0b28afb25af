#include "common/http/testing/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

sockaddr_in Address(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

RawClient::RawClient(uint16_t port, const std::string& source)
    : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval timeout{60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const sockaddr_in from = Address(source, 0);
  const sockaddr_in to = Address("127.0.0.1", port);
  connected_ = bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0 &&
               connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

RawClient::RawClient(RawClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      connected_(other.connected_),
      buffered_(std::move(other.buffered_)) {}

void RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void RawClient::Get(const std::string& path) {
  Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

void RawClient::Post(const std::string& path, const std::string& body) {
  Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                    "\r\n\r\n", body));
}

bool RawClient::Fill() {
  char block[65536];
  const ssize_t got = recv(fd_, block, sizeof(block), 0);
  if (got > 0) buffered_.append(block, static_cast<size_t>(got));
  return got > 0;
}

std::string RawClient::ReadUntil(std::string_view until) {
  size_t found = std::string::npos;
  while (until.empty() || (found = buffered_.find(until)) == std::string::npos) {
    if (!Fill()) return std::exchange(buffered_, "");
  }
  std::string text = buffered_.substr(0, found + until.size());
  buffered_.erase(0, text.size());
  return text;
}

RawAnswer RawClient::Read(bool head) {
  RawAnswer answer;
  while (true) {
    const std::string text = ReadUntil("\r\n\r\n");
    const size_t line = text.find("\r\n");
    if (line == std::string::npos || text.size() < 12) return answer;
    answer.status = std::atoi(text.c_str() + 9);
    answer.header = text.substr(line + 2);
    if (answer.status >= 200) break;
  }
  const size_t length = answer.header.find("Content-Length: ");
  if (head || length == std::string::npos) return answer;
  const auto bytes = static_cast<size_t>(std::atoll(answer.header.c_str() + length + 16));
  while (buffered_.size() < bytes && Fill()) {
  }
  answer.body = buffered_.substr(0, bytes);
  buffered_.erase(0, answer.body.size());
  return answer;
}

bool RawClient::AtEnd() {
  if (!buffered_.empty()) return false;
  char byte;
  return recv(fd_, &byte, 1, 0) <= 0;
}

void RawClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void RawClient::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void RawClient::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

}  // namespace baton
