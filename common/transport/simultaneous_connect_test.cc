// Two data planes connect to each other at the same moment over TCP, and one of them takes that
// back while the other stands still: in the order of steps in which UCX 1.13 ends the latter's
// process, if it takes their endpoints for the two ends of one connection (README, "Two workers").
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::Outbox;
using testing::TestMessage;

// UCX draws which of the two endpoints gives way: either the process of `a` ends, or its message
// never arrives.
constexpr int kRounds = 4;

// Holds a plane's data thread, and lets it go one round of its loop at a time.
class Held {
 public:
  explicit Held(DataPlane* plane) : plane_(plane) { Enter(); }
  ~Held() { turn_->go_on.Notify(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Runs `action` on the data thread, and then one round.
  void Step(std::function<void()> action = nullptr) {
    const std::shared_ptr<Turn> last = turn_;
    last->action = [this, action = std::move(action)] {
      if (action) action();
      Post();
    };
    turn_ = std::make_shared<Turn>();
    last->go_on.Notify();
    turn_->held.WaitForNotification();
    // UCX accepts connections on a thread of its own; with less time the test may see nothing.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

 private:
  struct Turn {
    Notification held;
    Notification go_on;
    std::function<void()> action;
  };

  void Enter() {
    Post();
    turn_->held.WaitForNotification();
  }
  // What is posted by a task runs in the loop's next round.
  void Post() {
    ASSERT_TRUE(plane_->Post([turn = turn_] {
      turn->held.Notify();
      turn->go_on.WaitForNotification();
      if (turn->action) turn->action();
    }));
  }

  DataPlane* const plane_;
  std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
};

struct Side {
  Side() : plane(*DataPlane::Create(testing::TestOptions())) {
    EXPECT_TRUE(plane->Register(MessageKind::kKvPages, &inbox).ok());
  }

  PeerId ConnectTo(const Side& other) {
    const auto peer = plane->Connect(other.plane->address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }
  void SendTo(PeerId peer) { plane->Send(peer, message.ToOutgoing(outbox.Expect())); }
  void DisconnectAndWait(PeerId peer) {
    plane->Disconnect(peer);
    while (!plane->Lanes(peer).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void ExpectSentTo(Side& other) {
    for (const absl::Status& status : outbox.WaitForAll()) ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(other.inbox.WaitFor(1).front().intact);
  }

  // Large enough for a rendezvous.
  const TestMessage message{{.id = 1, .payload_bytes = 1 << 20}, 1};
  Inbox inbox;
  Outbox outbox;
  std::unique_ptr<DataPlane> plane;
};

TEST(SimultaneousConnectTest, OneThatIsTakenBackDoesNotHarmTheOther) {
  for (int round = 0; round < kRounds; ++round) {
    Side a, b;
    {
      Held a_steps(a.plane.get());
      PeerId brief = 0;
      {
        Held b_steps(b.plane.get());
        b_steps.Step([&] { brief = b.ConnectTo(a); });
        a_steps.Step();  // Accepts the TCP connection.
        b_steps.Step();  // Asks UCX's other half for an endpoint.
        // Finds that question, and cannot ask its own before the TCP connection is accepted.
        a_steps.Step([&] { a.SendTo(a.ConnectTo(b)); });
      }
      b.DisconnectAndWait(brief);
    }
    a.ExpectSentTo(b);
    b.SendTo(b.ConnectTo(a));
    b.ExpectSentTo(a);
  }
}

}  // namespace
}  // namespace baton
