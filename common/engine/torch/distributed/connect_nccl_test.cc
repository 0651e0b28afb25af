// What can be seen of NCCL without a GPU: that it is refused at once, with both sides named. What
// it does with GPUs is device_communicator_test.cc's with NCCL's part played.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "common/engine/torch/plugin_interface.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

class ConnectNcclTest : public testing::Test {
 protected:
  absl::Status Connect(const std::string& device) {
    const auto store = std::make_shared<BootstrapStore>([](const auto&, const auto&) {});
    const GroupDescription group = {"stage 1", 7, 1, {"prefill-1-0", "prefill-1-1"}};
    // A rank that waited for rank 0 would outlast the test.
    return plugin_->connect_nccl(group, {.device = device, .connect_timeout_ms = 600'000}, store)
        .status();
  }

  const TorchPlugin* const plugin_ = *LoadTorchPlugin();
};

TEST_F(ConnectNcclTest, ADeviceThatIsNotThereIsRefusedAtOnceWithBothSides) {
  const absl::Status refused = Connect("cuda:64");
  EXPECT_TRUE(absl::StrContains(refused.message(), "rank 1 of stage 1 (prefill-1-1)")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "device cuda:64; ")) << refused;
  if (plugin_->has_cuda()) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(refused.message(), "on this host")) << refused;
  } else {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_TRUE(absl::StrContains(refused.message(), "this build connects ranks by Gloo"))
        << refused;
  }
}

TEST_F(ConnectNcclTest, IsNotBetweenCpus) {
  EXPECT_EQ(Connect("cpu").code(), plugin_->has_cuda() ? absl::StatusCode::kInvalidArgument
                                                       : absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace baton
