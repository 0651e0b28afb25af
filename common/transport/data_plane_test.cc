// Two data planes in one process. BUILD.bazel runs these tests once per setting of UCX_TLS.
#include "common/transport/data_plane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "common/base/random.h"
#include "common/base/sync.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::Outbox;
using testing::TestHeader;
using testing::TestMessage;

std::unique_ptr<DataPlane> MakePlane(const DataPlaneOptions& options = testing::TestOptions()) {
  absl::StatusOr<std::unique_ptr<DataPlane>> plane = DataPlane::Create(options);
  EXPECT_TRUE(plane.ok()) << plane.status();
  return *std::move(plane);
}

// Runs what the data thread has in its mailbox, so that later checks see its effects.
void Sync(DataPlane& plane) {
  Notification done;
  ASSERT_TRUE(plane.Post([&done] { done.Notify(); }));
  done.WaitForNotification();
}

class DataPlaneTest : public ::testing::Test {
 protected:
  explicit DataPlaneTest(const DataPlaneOptions& sender_options = testing::TestOptions())
      : sender_(MakePlane(sender_options)), receiver_(MakePlane()) {
    EXPECT_TRUE(receiver_->Register(MessageKind::kKvPages, &inbox_).ok());
    absl::StatusOr<PeerId> peer = sender_->Connect(receiver_->address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    peer_ = *peer;
  }

  void Send(const TestHeader& header, uint32_t send_runs) {
    messages_.push_back(std::make_unique<TestMessage>(header, send_runs));
    sender_->Send(peer_, messages_.back()->ToOutgoing(outbox_.Expect()));
  }

  // Stops the receiver's data thread, once the sender is connected, until the returned notification
  // fires.
  std::shared_ptr<Notification> BlockReceiver() {
    const TestMessage first({.id = kFirstId, .payload_bytes = 1}, 1);
    Notification sent;
    sender_->Send(peer_, first.ToOutgoing([&sent](const absl::Status&) { sent.Notify(); }));
    sent.WaitForNotification();
    inbox_.WaitForId(kFirstId);
    auto go_on = std::make_shared<Notification>();
    Notification blocked;
    EXPECT_TRUE(receiver_->Post([&blocked, go_on] {
      blocked.Notify();
      go_on->WaitForNotification();
    }));
    blocked.WaitForNotification();
    return go_on;
  }

  static constexpr uint64_t kFirstId = 1 << 20;

  // Before the planes: they are used until the planes are gone.
  Inbox inbox_;
  Outbox outbox_;
  std::vector<std::unique_ptr<TestMessage>> messages_;
  std::unique_ptr<DataPlane> sender_;
  std::unique_ptr<DataPlane> receiver_;
  PeerId peer_ = 0;
};

class SmallWindowTest : public DataPlaneTest {
 protected:
  SmallWindowTest()
      : DataPlaneTest({.window_operations = 2,
                       .window_bytes = 64 << 10,
                       .queue_operations = 8,
                       .pull = testing::TestOptions().pull}) {}
};

TEST_F(DataPlaneTest, PlacesEverySizeAndShapeByteExact) {
  const size_t sizes[] = {0,    1,     7,      64,      511,     4096,     8191,    8192,
                          9000, 65536, 100001, 1 << 20, 3000001, 16 << 20, 5 << 20, 12};
  uint64_t id = 0;
  uint64_t bytes = 0;
  for (size_t size : sizes) {
    for (uint32_t send_runs : {1u, 2u, 5u, 64u}) {
      const uint32_t receive_runs = send_runs == 5 ? 64 : 1 + static_cast<uint32_t>(id % 7);
      Send({.id = ++id, .payload_bytes = size, .receive_runs = receive_runs}, send_runs);
      bytes += size;
    }
  }
  const std::vector<Inbox::Arrival> arrivals = inbox_.WaitFor(id);
  ASSERT_EQ(arrivals.size(), id);
  std::vector<bool> seen(id + 1);
  for (const Inbox::Arrival& arrival : arrivals) {
    EXPECT_TRUE(arrival.status.ok()) << arrival.status;
    EXPECT_TRUE(arrival.intact) << arrival.header.payload_bytes << " bytes";
    EXPECT_FALSE(seen[arrival.header.id]);
    seen[arrival.header.id] = true;
  }
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(outbox_.duplicates(), 0u);
  EXPECT_EQ(sender_->counters().bytes_sent, bytes);
  EXPECT_EQ(sender_->counters().messages_sent, id);
  EXPECT_EQ(receiver_->counters().bytes_received, bytes);
  EXPECT_EQ(receiver_->counters().messages_received, id);
}

TEST_F(DataPlaneTest, SmallMessagesOfManyThreadsKeepEachThreadsOrder) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kPerThread = 1000;
  std::vector<std::unique_ptr<TestMessage>> owned(kThreads * kPerThread);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &owned] {
      for (uint64_t i = 0; i < kPerThread; ++i) {
        std::unique_ptr<TestMessage>& message = owned[t * kPerThread + i];
        message = std::make_unique<TestMessage>(
            TestHeader{.id = t * kPerThread + i, .payload_bytes = (i * 37) % 2000}, 1);
        sender_->Send(peer_, message->ToOutgoing(outbox_.Expect()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> next(kThreads, 0);
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(kThreads * kPerThread)) {
    EXPECT_TRUE(arrival.intact);
    const uint64_t thread = arrival.header.id / kPerThread;
    EXPECT_EQ(arrival.header.id % kPerThread, next[thread]++);
  }
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DataPlaneTest, DropsWhatTheHandlerRefuses) {
  uint64_t id = 0;
  for (size_t size : {0, 100, 20000, 2 << 20}) {
    for (uint32_t refuse : {1u, 2u}) {
      if (size == 0 && refuse == 2) continue;  // Nothing plus nothing does sum up.
      Send({.id = ++id, .payload_bytes = size, .refuse = refuse}, 3);
    }
  }
  Send({.id = 1000, .payload_bytes = 5000}, 2);
  const std::vector<Inbox::Arrival> arrivals = inbox_.WaitFor(1);
  EXPECT_EQ(arrivals.front().header.id, 1000u);
  EXPECT_TRUE(arrivals.front().intact);
  // Refusal is silent: the sender may reuse its memory all the same.
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  receiver_->Shutdown();
  EXPECT_EQ(receiver_->counters().messages_refused, id);
  EXPECT_EQ(inbox_.WaitFor(1).size(), 1u);
}

TEST_F(DataPlaneTest, DropsKindsWithoutHandler) {
  Notification sent;
  sender_->Send(peer_, {.kind = MessageKind::kActivations,
                        .header = std::vector<std::byte>(20),
                        .runs = {},
                        .on_sent = [&sent](const absl::Status&) { sent.Notify(); }});
  sent.WaitForNotification();
  Send({.id = 1, .payload_bytes = 10}, 1);
  inbox_.WaitFor(1);
  EXPECT_EQ(receiver_->counters().messages_malformed, 1u);
  EXPECT_EQ(receiver_->counters().messages_refused, 0u);
}

TEST_F(DataPlaneTest, CallsAnUnregisteredHandlerNoMore) {
  Send({.id = 1, .payload_bytes = 10}, 1);
  inbox_.WaitFor(1);
  receiver_->Unregister(MessageKind::kKvPages);
  Send({.id = 2, .payload_bytes = 10}, 1);
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  // Sent is not arrived: a handler that is registered too soon would still be called.
  while (receiver_->counters().messages_malformed == 0) std::this_thread::yield();
  ASSERT_TRUE(receiver_->Register(MessageKind::kKvPages, &inbox_).ok());
  Send({.id = 3, .payload_bytes = 10}, 1);
  EXPECT_EQ(inbox_.WaitFor(2).back().header.id, 3u);
  EXPECT_EQ(receiver_->counters().messages_malformed, 1u);
}

TEST_F(DataPlaneTest, RefusesBadOutgoingMessages) {
  Outgoing long_header{.header = std::vector<std::byte>(kMaxMessageHeaderBytes + 1)};
  long_header.on_sent = outbox_.Expect();
  sender_->Send(peer_, std::move(long_header));
  sender_->Send(peer_, {.kind = static_cast<MessageKind>(kMaxMessageKinds),
                        .header = {},
                        .runs = {},
                        .on_sent = outbox_.Expect()});
  sender_->Send(peer_ + 17, {.header = {}, .runs = {}, .on_sent = outbox_.Expect()});
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sender_->counters().send_errors, 3u);
}

TEST_F(SmallWindowTest, QueuesBeyondTheWindowAndRefusesBeyondTheQueue) {
  const std::shared_ptr<Notification> go_on = BlockReceiver();
  constexpr uint64_t kMessages = 40;
  for (uint64_t id = 0; id < kMessages; ++id) {
    Send({.id = id, .payload_bytes = 4 << 20}, 2);  // Larger than the window: one at a time.
  }
  Sync(*sender_);
  go_on->Notify();
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  const auto sent = static_cast<size_t>(
      std::count_if(statuses.begin(), statuses.end(), [](const auto& s) { return s.ok(); }));
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  // A blocked receiver takes none of 4 MiB: one in flight, eight in the queue.
  EXPECT_EQ(sent, 9u);
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(1 + sent)) EXPECT_TRUE(arrival.intact);
}

TEST_F(SmallWindowTest, ControlGoesAheadOfQueuedDataAndHasItsOwnRoom) {
  const std::shared_ptr<Notification> go_on = BlockReceiver();
  constexpr uint64_t kControlId = 100;
  for (uint64_t id = 0; id < 20; ++id) Send({.id = id, .payload_bytes = 4 << 20}, 1);
  Send({.id = kControlId, .payload_bytes = 0}, 1);
  Send({.id = kControlId + 1, .payload_bytes = 0}, 1);
  Sync(*sender_);
  go_on->Notify();
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  const auto sent = static_cast<size_t>(
      std::count_if(statuses.begin(), statuses.end(), [](const auto& s) { return s.ok(); }));
  EXPECT_EQ(sent, 9u + 2u) << "data was refused for want of room, control was not";
  EXPECT_TRUE(statuses.back().ok()) << statuses.back();
  std::vector<uint64_t> order;
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(1 + sent)) order.push_back(arrival.header.id);
  const auto place_of = [&order](uint64_t id) {
    return std::find(order.begin(), order.end(), id) - order.begin();
  };
  EXPECT_LE(place_of(kControlId), 2) << "after BlockReceiver's message and one of the window";
  EXPECT_LE(place_of(kControlId + 1), 3);
  EXPECT_LT(place_of(kControlId), place_of(kControlId + 1)) << "control keeps its order";
}

TEST_F(DataPlaneTest, DisconnectEndsOutstandingSendsOnce) {
  const std::shared_ptr<Notification> go_on = BlockReceiver();
  for (uint64_t id = 0; id < 100; ++id) Send({.id = id, .payload_bytes = 1 << 20}, 4);
  sender_->Disconnect(peer_);
  Send({.id = 100, .payload_bytes = 10}, 1);
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  size_t cancelled = 0;
  for (const absl::Status& status : statuses) {
    if (status.code() == absl::StatusCode::kCancelled) ++cancelled;
  }
  EXPECT_GE(cancelled, 90u);  // The window is 8 MiB.
  EXPECT_FALSE(statuses.back().ok());
  EXPECT_EQ(outbox_.duplicates(), 0u);
  sender_->Disconnect(peer_);
  go_on->Notify();
  // The receiver goes on with a new connection.
  absl::StatusOr<PeerId> peer = sender_->Connect(receiver_->address());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_NE(*peer, peer_);
  peer_ = *peer;
  Send({.id = 777, .payload_bytes = 300000}, 3);
  EXPECT_TRUE(inbox_.WaitForId(777).intact);
}

TEST_F(DataPlaneTest, ShutdownEndsOutstandingSendsOnce) {
  const std::shared_ptr<Notification> go_on = BlockReceiver();
  for (uint64_t id = 0; id < 50; ++id) Send({.id = id, .payload_bytes = 1 << 20}, 4);
  sender_->Shutdown();
  Send({.id = 51, .payload_bytes = 10}, 1);
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  EXPECT_EQ(statuses.back().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outbox_.duplicates(), 0u);
  EXPECT_FALSE(sender_->Post([] {}));
  EXPECT_EQ(sender_->Connect(receiver_->address()).status().code(), absl::StatusCode::kUnavailable);
  sender_->Shutdown();
  go_on->Notify();
}

TEST_F(DataPlaneTest, RefusesBadAddresses) {
  const std::string good = receiver_->address();
  std::vector<std::string> bad = {"", "x", "not an address at all, but long enough to be one",
                                  good.substr(0, good.size() - 1), good + "x"};
  for (size_t i = 0; i < good.size(); ++i) {
    bad.push_back(good);
    bad.back()[i] = static_cast<char>(bad.back()[i] ^ 0x40);
  }
  for (const std::string& address : bad) {
    EXPECT_EQ(sender_->Connect(address).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(DataPlaneTest, TimerTicksUntilItIsStopped) {
  Notification ticked_thrice;
  int ticks = 0;
  int64_t last_us = 0;
  sender_->SetTimer(1000, [&](int64_t now_us) {
    EXPECT_GT(now_us, last_us);
    last_us = now_us;
    if (++ticks == 3) {
      sender_->SetTimer(0, nullptr);
      ticked_thrice.Notify();
    }
  });
  ticked_thrice.WaitForNotification();
  Sync(*sender_);
  EXPECT_EQ(ticks, 3);
}

TEST_F(DataPlaneTest, CallbacksMayUseEveryMethod) {
  // The arrival hook runs within a callback of UCX.
  Notification answered;
  Inbox answers;
  ASSERT_TRUE(sender_->Register(MessageKind::kKvControl, &answers).ok());
  EXPECT_EQ(sender_->Register(MessageKind::kKvControl, &answers).code(),
            absl::StatusCode::kAlreadyExists);
  TestMessage answer({.id = 5, .payload_bytes = 1000}, 1);
  inbox_.SetArrivalHook([&](const Inbox::Arrival&) {
    absl::StatusOr<PeerId> back = receiver_->Connect(sender_->address());
    ASSERT_TRUE(back.ok());
    EXPECT_FALSE(receiver_->Lanes(*back).empty());
    Outgoing message = answer.ToOutgoing([this, back](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      receiver_->Disconnect(*back + 1000);
    });
    message.kind = MessageKind::kKvControl;
    receiver_->Send(*back, std::move(message));
  });
  Sync(*receiver_);  // The hook is the data thread's from here on.
  Send({.id = 1, .payload_bytes = 100}, 1);
  EXPECT_TRUE(answers.WaitFor(1).front().intact);
  sender_->Shutdown();
  receiver_->Shutdown();
}

class SmallMailboxTest : public DataPlaneTest {
 protected:
  SmallMailboxTest() : DataPlaneTest({.mailbox_limit = 1, .pull = testing::TestOptions().pull}) {}
};

TEST_F(SmallMailboxTest, TheDataThreadsOwnMessagesNeedNoRoomAndLeaveBeforeADisconnect) {
  Send({.id = 0, .payload_bytes = 10}, 1);
  inbox_.WaitForId(0);  // Connected.
  ASSERT_TRUE(sender_->Post([this] {
    for (uint64_t id = 1; id <= 20; ++id) Send({.id = id, .payload_bytes = 10}, 1);
    sender_->Disconnect(peer_);
  }));
  const std::vector<Inbox::Arrival> arrivals = inbox_.WaitFor(21);
  for (size_t i = 0; i < 21; ++i) EXPECT_EQ(arrivals[i].header.id, i) << "out of order";
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace baton
