#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/net/host.h"

namespace baton::net {
namespace {

// Another listener on any port of `address`.
class Listener {
 public:
  explicit Listener(const std::string& address, bool shares_port = false)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (shares_port) setsockopt(fd_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    sockaddr_in where{};
    where.sin_family = AF_INET;
    inet_pton(AF_INET, address.c_str(), &where.sin_addr);
    socklen_t length = sizeof(where);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&where), length), 0) << std::strerror(errno);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&where), &length), 0);
    port_ = ntohs(where.sin_port);
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

TEST(CheckListenTest, NamesWhatIsTaken) {
  const Listener other("127.0.0.1");
  const absl::Status status = CheckListen("127.0.0.1", other.port());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            absl::StrCat("cannot listen on 127.0.0.1:", other.port(), ": Address already in use"));
  EXPECT_TRUE(CheckListen("127.0.0.2", other.port()).ok());
}

TEST(CheckListenTest, AnAddressCoversAnother) {
  const Listener one("127.0.0.1");
  EXPECT_FALSE(CheckListen("0.0.0.0", one.port()).ok());
  EXPECT_FALSE(CheckListen("::", one.port()).ok());
  const Listener all("0.0.0.0");
  EXPECT_FALSE(CheckListen("127.0.0.1", all.port()).ok());
}

TEST(CheckListenTest, APortThatIsSharedIsTaken) {
  const Listener sharing("127.0.0.1", /*shares_port=*/true);
  EXPECT_FALSE(CheckListen("127.0.0.1", sharing.port()).ok());
}

TEST(CheckListenTest, IsFreeOnceTheListenerHasGone) {
  int port = 0;
  { port = Listener("127.0.0.1").port(); }
  EXPECT_TRUE(CheckListen("127.0.0.1", port).ok());
}

TEST(CheckListenTest, RefusesWhatIsNoAddress) { EXPECT_FALSE(CheckListen("localhost", 80).ok()); }

}  // namespace
}  // namespace baton::net
