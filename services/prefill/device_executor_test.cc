// Stages whose executors are devices: slow, limited, failing, and with copies that end in any
// order.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/engine/testing/fake_device.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

// Two stages; the device of the last one does as `options` say.
class DeviceChain {
 public:
  explicit DeviceChain(const FakeDevice::Options& options) {
    TestChain::Settings settings;
    settings.stages = 2;
    settings.make_executor = [this, options](int rank, std::unique_ptr<StageModel> model) {
      auto host = std::make_unique<ThreadedExecutor>(std::move(model), "prefill.compute");
      auto device = std::make_unique<FakeDevice>(std::move(host),
                                                 rank == 1 ? options : FakeDevice::Options{});
      devices_.push_back(device.get());
      return device;
    };
    chain_ = std::make_unique<TestChain>(settings);
  }
  TestChain& chain() { return *chain_; }
  FakeDevice& last_device() { return *devices_.back(); }
  bool NothingExported() const {
    return chain_->WaitFor([this] {
      return std::all_of(devices_.begin(), devices_.end(),
                         [](const FakeDevice* device) { return device->exported() == 0; });
    });
  }

 private:
  std::vector<FakeDevice*> devices_;
  std::unique_ptr<TestChain> chain_;
};

TEST(DeviceExecutorTest, CopiesThatOvertakeOneAnotherChangeNoByte) {
  DeviceChain devices({.first_copies = 2});
  TestChain& chain = devices.chain();
  ASSERT_TRUE(chain.WaitReady());
  // The long ones, of three chunks and more, first: their first two copies are there together,
  // while a short one's commit, which goes behind its copy, would hold back all that follow it.
  for (const std::vector<int>& round : {std::vector<int>{300, 90, 500}, {31, 64, 7, 200}}) {
    std::vector<std::future<std::string>> answers;
    answers.reserve(round.size());
    for (const int tokens : round) {
      answers.push_back(std::async(std::launch::async, [&chain, tokens] {
        const auto prompt = TestChain::Prompt(tokens, tokens);
        const Ticket ticket = chain.decode().Grant(tokens);
        const absl::Status status = chain.Run(static_cast<uint64_t>(tokens), prompt, ticket);
        if (!status.ok()) return std::string(status.message());
        return chain.decode().Check(ticket, prompt, 2);
      }));
    }
    for (auto& answer : answers) EXPECT_EQ(answer.get(), "");
    EXPECT_GE(devices.last_device().overtaken(), 1);
  }
  EXPECT_TRUE(chain.WaitIdle());
  EXPECT_TRUE(devices.NothingExported());
}

// The KV of a plan that failed is undefined, so its epoch ends; the next one is sound.
TEST(DeviceExecutorTest, AFailedSubmissionCostsAnEpochAndNoMore) {
  DeviceChain devices({.verdict = [](int submission) {
    return submission == 3 ? absl::InternalError("the device has fallen off the bus")
                           : absl::OkStatus();
  }});
  TestChain& chain = devices.chain();
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(300, 1);
  const absl::Status failed = chain.Run(1, prompt, chain.decode().Grant(300));
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_NE(failed.message().find("fallen off the bus"), std::string::npos) << failed;
  EXPECT_TRUE(devices.NothingExported());
  // The answer can be here before the chain knows that it is down, and it comes up by itself.
  uint64_t attempt = 1;
  Ticket ticket;
  absl::Status again;
  ASSERT_TRUE(chain.WaitFor([&] {
    ticket = chain.decode().Grant(300);
    again = chain.Run(++attempt, prompt, ticket);
    return again.code() != absl::StatusCode::kUnavailable;
  })) << again;
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_EQ(chain.decode().Check(ticket, prompt, 2), "");
  EXPECT_TRUE(chain.WaitIdle());
}

TEST(DeviceExecutorTest, ADeviceWithoutRoomFailsTheRequestAndNamesTheStage) {
  DeviceChain devices({.export_slots = 0});
  TestChain& chain = devices.chain();
  ASSERT_TRUE(chain.WaitReady());
  const absl::Status status = chain.Run(1, TestChain::Prompt(40, 1), chain.decode().Grant(40));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("no room for exports"), std::string::npos) << status;
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "prefill-1");
  EXPECT_TRUE(chain.WaitIdle());
}

}  // namespace
}  // namespace baton::prefill
