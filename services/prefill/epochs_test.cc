// Epochs of chains of real services: stages that die, endpoints that are replaced, clocks that are
// set back, links from another chain's processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "services/prefill/prefill_service.h"
#include "services/prefill/testing/gate.h"
#include "services/prefill/testing/test_chain.h"

namespace baton::prefill {
namespace {

TEST(EpochsTest, ADeadStageEndsItsRequestsAndTheChainComesBack) {
  Gate gate;
  TestChain chain({.stages = 3, .before_forward = {{1, gate.Hook()}}});
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(600, 1);
  const Ticket ticket = chain.decode().Grant(600);
  auto running = std::async(std::launch::async, [&] { return chain.Run(1, prompt, ticket); });
  gate.WaitEntered();
  gate.Open();
  chain.KillStage(1);
  const absl::Status status = running.get();
  // It may have been through before the stage was gone.
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(LegOf(status), "prefill");
    EXPECT_EQ(InstanceOf(status), "prefill-1");
  }
  ASSERT_TRUE(chain.WaitFor([&] { return !chain.service(0).ready(); }));
  EXPECT_THAT(std::string(chain.service(0).Readiness().message()), testing::HasSubstr("prefill-1"));
  EXPECT_EQ(chain.Run(2, prompt, chain.decode().Grant(600)).code(), absl::StatusCode::kUnavailable);
  chain.ShareView();
  chain.StartStage(1);
  chain.ShareView();
  ASSERT_TRUE(chain.WaitReady());
  const Ticket next = chain.decode().Grant(600);
  const absl::Status again = chain.Run(3, prompt, next);
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(chain.decode().Check(next, prompt, 3), "");
  EXPECT_TRUE(chain.WaitIdle());
}

// Stage 0 may notice the loss of the next stage before it is reported.
TEST(EpochsTest, ALostNeighbourIsNamedByTheStageThatMissesIt) {
  for (const int missing : {1, 2}) {
    Gate gate;
    TestChain chain({.stages = 3, .before_forward = {{missing - 1, gate.Hook()}}});
    ASSERT_TRUE(chain.WaitReady());
    auto running = std::async(std::launch::async, [&] {
      return chain.Run(1, TestChain::Prompt(100, 1), chain.decode().Grant(100));
    });
    gate.WaitEntered();
    chain.Disconnect(missing - 1, missing);
    gate.Open();
    const absl::Status status = running.get();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(InstanceOf(status), absl::StrCat("prefill-", missing)) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr(absl::StrCat("to prefill-", missing)));
  }
}

// As of one that every router had lost for a moment: it is the same process, and no endpoint of the
// epoch leads to it any more.
TEST(EpochsTest, ANeighbourThatIsConnectedAnewEndsTheEpochAndTheNextOneServes) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(testing::Message() << rank << " and the one behind it");
    TestChain chain({.stages = 3});
    ASSERT_TRUE(chain.WaitReady());
    chain.Disconnect(rank, rank + 1);
    chain.Disconnect(rank + 1, rank);
    chain.ShareView();
    for (int i = 0; i < 3; ++i) (void)chain.service(i).AtRest();  // Its loop has taken the view.
    uint64_t attempt_id = 0;
    EXPECT_TRUE(chain.WaitFor([&] {
      const auto prompt = TestChain::Prompt(50, 1);
      const absl::Status status = chain.Run(++attempt_id, prompt, chain.decode().Grant(50));
      // Refused while the chain is linked anew, but never sent to nowhere.
      EXPECT_THAT(status.message(), testing::Not(testing::HasSubstr("data plane"))) << status;
      return status.ok();
    }));
  }
}

// As a chain of two stages says it.
v1::LinkRequest HelloToStageOne(TestChain& chain, const InstanceRef& stage0, uint64_t epoch) {
  v1::LinkRequest request;
  v1::LinkHello& hello = *request.mutable_hello();
  hello.set_chain_id("chain-0");
  hello.set_epoch(epoch);
  hello.set_stage(1);
  hello.set_page_count(64);
  hello.set_max_plan_tokens(64);
  hello.set_activation_credits(2);
  for (int rank = 0; rank < 2; ++rank) {
    v1::KvWriter* stage = hello.add_stages();
    *stage->mutable_instance() = rpc::ToProto(rank == 0 ? stage0 : chain.instance(rank));
    stage->mutable_layers()->set_begin(rank == 0 ? 0 : kFakeLayers / 2 - 1);
    stage->mutable_layers()->set_end(rank == 0 ? kFakeLayers / 2 - 1 : kFakeLayers);
  }
  return request;
}

// It runs on another host now, or its clock was set back.
TEST(EpochsTest, AStageZeroWhoseClockIsBehindIsWiredAllTheSame) {
  TestChain chain({.stages = 2});
  ASSERT_TRUE(chain.WaitReady());
  const InstanceRef former = chain.instance(0);
  chain.KillStage(0);
  {
    const auto stub = chain.Stub(1);
    grpc::ClientContext context;
    const auto stream = stub->Link(&context);
    const uint64_t an_hour_ahead =
        static_cast<uint64_t>(absl::ToUnixMicros(absl::Now() + absl::Hours(1)));
    stream->Write(HelloToStageOne(chain, former, an_hour_ahead));
    v1::LinkResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_TRUE(response.has_ready());
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }
  chain.StartStage(0);
  chain.ShareView();
  ASSERT_TRUE(chain.WaitReady());
  const auto prompt = TestChain::Prompt(50, 1);
  EXPECT_TRUE(chain.Run(1, prompt, chain.decode().Grant(50)).ok());
}

TEST(EpochsTest, RefusesForeignLinks) {
  TestChain chain({.stages = 2});
  ASSERT_TRUE(chain.WaitReady());
  const auto code_of = [&](const v1::LinkRequest& request) {
    const auto stub = chain.Stub(1);
    grpc::ClientContext context;
    const auto stream = stub->Link(&context);
    stream->Write(request);
    v1::LinkResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish().error_code();
  };
  v1::LinkRequest plan;
  plan.mutable_plan()->set_number(1);
  EXPECT_EQ(code_of(plan), grpc::StatusCode::FAILED_PRECONDITION);
  v1::LinkRequest hello;
  hello.mutable_hello()->set_chain_id("chain-1");
  EXPECT_EQ(code_of(hello), grpc::StatusCode::INVALID_ARGUMENT);
  hello.mutable_hello()->set_chain_id("chain-0");
  hello.mutable_hello()->set_epoch(1);
  hello.mutable_hello()->set_stage(1);
  EXPECT_EQ(code_of(hello), grpc::StatusCode::INVALID_ARGUMENT);
  // Another process in stage 0's place, as another router might know it, while the chain stands.
  hello = HelloToStageOne(chain, {"stranger", 7}, uint64_t{1} << 62);
  EXPECT_EQ(code_of(hello), grpc::StatusCode::FAILED_PRECONDITION);
  hello.mutable_hello()->set_epoch((uint64_t{1} << 62) + 1);
  EXPECT_EQ(code_of(hello), grpc::StatusCode::INVALID_ARGUMENT);
  // The chain's own link is none the worse.
  const auto prompt = TestChain::Prompt(50, 1);
  EXPECT_TRUE(chain.Run(1, prompt, chain.decode().Grant(50)).ok());
}

}  // namespace
}  // namespace baton::prefill
