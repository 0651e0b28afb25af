// A blocking HTTP client for tests that sends exactly the bytes it is given. Reads time out, so
// that a server's mistake fails a test instead of hanging it.
#ifndef COMMON_HTTP_TESTING_RAW_CLIENT_H_
#define COMMON_HTTP_TESTING_RAW_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

struct RawAnswer {
  int status = 0;      // 0: the connection ended before one.
  std::string header;  // Lines with their ends, without the status line.
  std::string body;

  bool Has(std::string_view line) const { return header.find(line) != std::string::npos; }
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, const std::string& source = "127.0.0.1");
  ~RawClient() { Close(); }
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void Send(std::string_view bytes);  // What the server no longer takes is dropped.
  void Get(const std::string& path);
  void Post(const std::string& path, const std::string& body);

  // One answer with a Content-Length (or none); skips interim ones. `head`: no body follows.
  RawAnswer Read(bool head = false);
  // Everything up to and including `until`, or up to the end of the connection.
  std::string ReadUntil(std::string_view until);
  std::string ReadAll() { return ReadUntil(""); }
  bool AtEnd();  // The server has closed, and everything is read.

  void HalfClose();
  void Close();
  void Reset();  // Closes so that the server notices at once.

 private:
  bool Fill();  // False at the end.

  int fd_;
  bool connected_ = false;
  std::string buffered_;
};

}  // namespace baton

#endif  // COMMON_HTTP_TESTING_RAW_CLIENT_H_
