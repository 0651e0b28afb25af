// How a group over Gloo fails to come about: always, and in a bounded time.
#include <gloo/rendezvous/store.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/sync.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/gloo/gloo_transport.h"

namespace baton {
namespace {

using Transport = absl::StatusOr<std::unique_ptr<MessageTransport>>;

template <typename Store>
concept LaterThanDebian12s = requires(Store& store) {
  store.has_v2_support();
};

TEST(GlooConnectTest, WaitsForNobodyLongerThanItIsTold) {
  const auto store = std::make_shared<BootstrapStore>([](const auto&, const auto&) {});
  const Transport transport = ConnectGloo({.rank = 0, .size = 2, .connect_timeout_ms = 200}, store);
  EXPECT_FALSE(transport.ok());
}

TEST(GlooConnectTest, EndsWithTheRendezvous) {
  // The epoch ends as soon as this rank has published its entries.
  std::shared_ptr<BootstrapStore> store;
  store = std::make_shared<BootstrapStore>([&store](const auto&, const auto&) {
    store->End(absl::AbortedError("stage 1 goes on with epoch 8"));
  });
  const Transport transport =
      ConnectGloo({.rank = 0, .size = 2, .connect_timeout_ms = 600'000}, store);
  // After Gloo's own message, if its version has one.
  EXPECT_TRUE(absl::EndsWith(transport.status().message(), "stage 1 goes on with epoch 8"))
      << transport.status();
}

TEST(GlooConnectTest, APeerThatStandsStillWhileConnectingEndsItToo) {
  // Rank 0 gets rank 1's entries, but rank 1 gets none and so never connects.
  std::shared_ptr<BootstrapStore> first;
  std::shared_ptr<BootstrapStore> second;
  first = std::make_shared<BootstrapStore>([](const auto&, const auto&) {});
  second = std::make_shared<BootstrapStore>(
      [&first](const std::string& key, const std::string& value) { first->Put(key, value); });
  Transport deaf = absl::UnknownError("");
  std::thread other(
      [&] { deaf = ConnectGloo({.rank = 1, .size = 2, .connect_timeout_ms = 1000}, second); });
  const Transport hearing = ConnectGloo({.rank = 0, .size = 2, .connect_timeout_ms = 1000}, first);
  other.join();
  // A later Gloo takes a pair for connected as soon as its own side is.
  EXPECT_FALSE(!LaterThanDebian12s<gloo::rendezvous::Store> && hearing.ok());
  EXPECT_FALSE(deaf.ok()) << "so it never says that it is connected, and no group forms";
}

TEST(GlooConnectTest, AnAddressThatIsNotThisHostsIsRefused) {
  const auto store = std::make_shared<BootstrapStore>([](const auto&, const auto&) {});
  const Transport transport =
      ConnectGloo({.rank = 0, .size = 2, .host = "192.0.2.1", .connect_timeout_ms = 60'000}, store);
  EXPECT_FALSE(transport.ok());
  EXPECT_NE(std::string(transport.status().message()).find("192.0.2.1"), std::string::npos)
      << transport.status();
}

}  // namespace
}  // namespace baton
