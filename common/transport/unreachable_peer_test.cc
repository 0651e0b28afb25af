// A peer whose machine drops what is sent to it, as a deleted pod's address does: a process that
// still has its address tries to connect, and must serve all other peers meanwhile.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/net/testing/open_sockets.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::Outbox;
using testing::TestMessage;

// An IPv4 address that this process listens on: (address, port), both as in sockaddr_in.
using Listener = std::pair<uint32_t, uint16_t>;

std::set<Listener> Listeners() {
  std::set<Listener> found;
  for (const int fd : net::testing::OpenSockets()) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    sockaddr_in address = {};
    socklen_t address_bytes = sizeof(address);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0) continue;
    if (address.sin_family == AF_INET) found.emplace(address.sin_addr.s_addr, address.sin_port);
  }
  return found;
}

// Takes an address over and answers no SYN: its accept queue is full and is not emptied.
class BlackHole {
 public:
  explicit BlackHole(const Listener& at) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = at.first;
    address.sin_port = at.second;
    const int listener = Open();
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener, 0), 0);
    for (int i = 0; i < 8; ++i) {
      (void)connect(Open(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }
  BlackHole(const BlackHole&) = delete;
  BlackHole& operator=(const BlackHole&) = delete;
  ~BlackHole() {
    for (const int fd : descriptors_) close(fd);
  }

 private:
  int Open() {
    descriptors_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    return descriptors_.back();
  }
  std::vector<int> descriptors_;
};

std::unique_ptr<DataPlane> MakePlane() {
  auto plane = DataPlane::Create({});
  EXPECT_TRUE(plane.ok()) << plane.status();
  return *std::move(plane);
}

TEST(UnreachablePeerTest, HoldsUpNobodyElse) {
  Inbox inbox;
  Outbox outbox;
  const TestMessage lost({.id = 1, .payload_bytes = 100}, 1);
  const TestMessage heard({.id = 2, .payload_bytes = 100}, 1);
  const std::unique_ptr<DataPlane> sender = MakePlane();
  const std::unique_ptr<DataPlane> receiver = MakePlane();
  ASSERT_TRUE(receiver->Register(MessageKind::kKvPages, &inbox).ok());

  const std::set<Listener> before = Listeners();
  std::unique_ptr<DataPlane> deleted = MakePlane();
  const std::string address = deleted->address();
  std::set<Listener> its = Listeners();
  for (const Listener& other : before) its.erase(other);
  ASSERT_FALSE(its.empty()) << "a data plane over TCP listens";
  deleted.reset();
  std::vector<std::unique_ptr<BlackHole>> holes;
  holes.reserve(its.size());
  for (const Listener& listener : its) holes.push_back(std::make_unique<BlackHole>(listener));

  const auto gone = sender->Connect(address);
  ASSERT_TRUE(gone.ok()) << gone.status();
  sender->Send(*gone, lost.ToOutgoing(outbox.Expect()));
  const auto peer = sender->Connect(receiver->address());
  ASSERT_TRUE(peer.ok()) << peer.status();
  sender->Send(*peer, heard.ToOutgoing(outbox.Expect()));
  inbox.WaitForId(2);
  sender->Disconnect(*gone);
  outbox.WaitForAll();
}

}  // namespace
}  // namespace baton
