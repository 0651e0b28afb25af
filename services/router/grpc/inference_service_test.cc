// On which threads requests are read, with a gateway that takes as long as the test wants.
#include "services/router/grpc/inference_service.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/server.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

// Reads requests for as long as it is held, and refuses them then.
class HeldGateway : public FakeGateway {
 public:
  absl::StatusOr<Submitted> Submit(GenerateCall, std::shared_ptr<ResponseSink>) override {
    {
      MutexLock lock(&mutex_);
      ++reading_;
    }
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; });
    return absl::InvalidArgumentError("a grammar that took long to read");
  }
  void CountRefused(Endpoint, const tracing::TraceContext&, const absl::Status&) override {}
  int reading() {
    MutexLock lock(&mutex_);
    return reading_;
  }
  void AwaitReading(int count) {
    MutexLock lock(&mutex_);
    mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reading_ >= count; });
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
  }

 private:
  Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
  int reading_ ABSL_GUARDED_BY(mutex_) = 0;
};

class InferenceServiceTest : public ::testing::Test {
 protected:
  static constexpr int kThreads = 2;

  struct Call {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    v1::WholeAnswer answer;
    Mutex mutex;
    std::optional<grpc::Status> end ABSL_GUARDED_BY(mutex);
  };

  void Serve(size_t max_waiting_bytes) {
    service_ = std::make_unique<InferenceService>(gateway_, *SecretSet::Load("", ""), kThreads,
                                                  max_waiting_bytes);
    auto running = rpc::StartServer({.host = "127.0.0.1"}, {service_.get()});
    BATON_CHECK(running.ok()) << running.status();
    server_ = std::move(running->server);
    stub_ = v1::Inference::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(running->port),
                                                       grpc::InsecureChannelCredentials()));
  }
  ~InferenceServiceTest() override {
    gateway_.Release();
    if (server_ != nullptr) rpc::StopServer(*server_);
  }

  Call& Begin() {
    Call& call = calls_.emplace_back();
    call.request.set_text("hello");
    stub_->async()->GenerateOnce(&call.context, &call.request, &call.answer,
                                 [&call](const grpc::Status& status) {
                                   MutexLock lock(&call.mutex);
                                   call.end = status;
                                 });
    return call;
  }
  static grpc::StatusCode EndOf(Call& call) {
    MutexLock lock(&call.mutex);
    call.mutex.Await(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call.mutex) { return call.end.has_value(); });
    return call.end->error_code();
  }

  HeldGateway gateway_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::deque<Call> calls_;
};

// More of them than gRPC has threads, which bring others' tokens, too.
TEST_F(InferenceServiceTest, RequestsThatTakeLongHoldNoThreadOfGrpcs) {
  Serve(1 << 20);
  for (int i = 0; i < 60; ++i) Begin();
  gateway_.AwaitReading(kThreads);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::GetModelInfoResponse info;
  const grpc::Status other = stub_->GetModelInfo(&context, {}, &info);
  EXPECT_TRUE(other.ok()) << other.error_message();
  EXPECT_EQ(gateway_.reading(), kThreads);
  // One that is cancelled while it waits is not read, and is let go of.
  calls_.back().context.TryCancel();
  EXPECT_EQ(EndOf(calls_.back()), grpc::StatusCode::CANCELLED);
  grpc::ClientContext stream_context;
  const auto stream = stub_->Generate(&stream_context, calls_[0].request);
  stream_context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  gateway_.Release();
  for (size_t i = 0; i + 1 < calls_.size(); ++i) {
    EXPECT_EQ(EndOf(calls_[i]), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(InferenceServiceTest, NoMoreWaitThanTheirBytesAllow) {
  Serve(size_t{20} << 10);
  for (int i = 0; i < 30; ++i) Begin();
  int refused = 0;
  gateway_.AwaitReading(kThreads);
  while (refused < 26) {
    refused = 0;
    for (Call& call : calls_) {
      MutexLock lock(&call.mutex);
      if (!call.end.has_value()) continue;
      EXPECT_EQ(call.end->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_TRUE(IsOverloaded(rpc::FromGrpc(*call.end)));
      ++refused;
    }
  }
  gateway_.Release();
  for (Call& call : calls_) EndOf(call);
  EXPECT_EQ(gateway_.reading(), 4);
}

}  // namespace
}  // namespace baton::router
