#include "services/prefill/stage/input_checks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace baton::prefill {
namespace {

TEST(InputChecksTest, HoldsWhenAllPiecesHave) {
  InputChecks checks(2);
  std::atomic<bool> all_checked{false};
  std::thread thread([&] {
    checks.Checked(absl::OkStatus());
    all_checked = true;
    checks.Checked(absl::OkStatus());
  });
  EXPECT_TRUE(checks.Await().ok());
  EXPECT_TRUE(all_checked);
  thread.join();
}

TEST(InputChecksTest, TellsTheFirstPieceThatIsDamaged) {
  InputChecks checks(3);
  checks.Checked(absl::OkStatus());
  checks.Checked(absl::DataLossError("piece 1"));
  checks.Checked(absl::DataLossError("piece 2"));
  EXPECT_EQ(checks.Await(), absl::DataLossError("piece 1"));
}

}  // namespace
}  // namespace baton::prefill
