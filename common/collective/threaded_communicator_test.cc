#include "common/collective/threaded_communicator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "common/collective/bootstrap_store.h"
#include "common/collective/testing/memory_transport.h"

namespace baton {
namespace {

constexpr int64_t kHourMs = 3'600'000;

GroupDescription GroupOf(int rank) {
  GroupDescription group;
  group.name = "stage 0";
  group.epoch = 7;
  group.rank = rank;
  group.members = {"p0", "p1"};
  return group;
}

// The other rank has left before it connected, so that no connection breaks.
TEST(ThreadedCommunicatorTest, AGroupThatIsGivenUpWhileItFormsEnds) {
  auto transports = testing::MakeMemoryTransports(2);
  BootstrapStore store([](const std::string&, const std::string&) {});
  std::thread forming([&] {
    const auto formed =
        ThreadedCommunicator::Create(GroupOf(0), {}, std::move(transports[0]), kHourMs, &store);
    EXPECT_EQ(formed.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(formed.status().message(),
              "rank 0 of stage 0 (p0) has aborted the group: the next epoch's group replaces it");
  });
  store.End(absl::CancelledError("the next epoch's group replaces it"));
  forming.join();
}

TEST(ThreadedCommunicatorTest, AGroupThatFormsInTimeIsLeftAlone) {
  auto transports = testing::MakeMemoryTransports(2);
  BootstrapStore store([](const std::string&, const std::string&) {});
  const auto form = [&](int rank) {
    const auto formed = ThreadedCommunicator::Create(
        GroupOf(rank), {}, std::move(transports[static_cast<size_t>(rank)]), kHourMs, &store);
    EXPECT_TRUE(formed.ok()) << formed.status();
  };
  std::thread other([&] { form(1); });
  form(0);
  other.join();
}

}  // namespace
}  // namespace baton
