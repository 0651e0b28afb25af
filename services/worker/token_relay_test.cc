#include "services/worker/token_relay.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/grpc_status.h"
#include "proto/baton/v1/relay.grpc.pb.h"

namespace baton::worker {
namespace {

v1::DecodeGenerateResponse Token(int32_t id) {
  v1::DecodeGenerateResponse event;
  event.mutable_token()->set_token_id(id);
  return event;
}

class TokenRelayTest : public ::testing::Test {
 protected:
  using Reader = std::unique_ptr<grpc::ClientReaderWriter<v1::RelayRequest, v1::RelayResponse>>;

  TokenRelayTest() {
    relays_.SetBegin([this](const auto& call, auto& relay) { Begin(call, relay); });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&relays_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Relays::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                    grpc::InsecureChannelCredentials()));
  }
  ~TokenRelayTest() override {
    relays_.Close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
  }

  // The code that ends a call which is refused.
  grpc::StatusCode Refusal() {
    grpc::ClientContext context;
    const Reader reader = stub_->Relay(&context);
    v1::RelayResponse message;
    EXPECT_FALSE(reader->Read(&message));
    return reader->Finish().error_code();
  }
  // One that is open: its first message has come.
  Reader Opened(grpc::ClientContext& context) {
    Reader reader = stub_->Relay(&context);
    v1::RelayResponse message;
    EXPECT_TRUE(reader->Read(&message));
    EXPECT_EQ(message.events_size(), 0);
    return reader;
  }

  // Notes what `call` begins, and whether it is cancelled.
  void Begin(const v1::RelayedCall& call, TokenRelay& relay) {
    const auto stream = relay.Open(call.attempt_id(), {nullptr, {}, "", 0});
    const uint64_t attempt_id = call.attempt_id();
    MutexLock lock(&mutex_);
    relay_ = relay.shared_from_this();
    ++begun_;
    if (stream == nullptr) return;
    stream->SetCancelHandler([this, attempt_id] {
      MutexLock in_handler(&mutex_);
      cancelled_.push_back(attempt_id);
    });
    streams_[attempt_id] = stream;
  }
  void AwaitBegun(int calls) {
    MutexLock lock(&mutex_);
    mutex_.Await([this, calls]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= calls; });
  }
  std::vector<uint64_t> AwaitCancelled(size_t calls) {
    MutexLock lock(&mutex_);
    mutex_.Await([this, calls]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_.size() >= calls; });
    return cancelled_;
  }
  // The relay that `reader` is the other end of, seen by a call.
  std::shared_ptr<TokenRelay> RelayOf(const Reader& reader) {
    reader->Write(Generates({kSeenBy}));
    AwaitBegun(1);
    MutexLock lock(&mutex_);
    return relay_;
  }
  static v1::RelayRequest Generates(const std::vector<uint64_t>& attempts) {
    v1::RelayRequest request;
    for (const uint64_t attempt_id : attempts) {
      v1::RelayedCall& call = *request.add_calls();
      call.set_attempt_id(attempt_id);
      call.mutable_generate()->set_attempt_id(attempt_id);
    }
    return request;
  }

  static constexpr uint64_t kSeenBy = 1'000'000;
  Mutex mutex_;
  std::shared_ptr<TokenRelay> relay_ ABSL_GUARDED_BY(mutex_);  // The latest call came by it.
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<TokenStream>> streams_;  // Those of calls that are awaited.
  TokenRelays relays_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Relays::Stub> stub_;
};

TEST_F(TokenRelayTest, AStepIsOneMessage) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  const std::shared_ptr<TokenRelay> relay = RelayOf(reader);
  v1::RelayResponse message;
  for (int step = 0; step < 3; ++step) {
    for (int text = 0; text < 10; ++text) {
      ASSERT_TRUE(relay->Push(100 + text, Token(10 * step + text)));
    }
    relays_.Flush();
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_EQ(message.events_size(), 10);
    for (int text = 0; text < 10; ++text) {
      EXPECT_EQ(message.events(text).attempt_id(), 100 + text);
      EXPECT_EQ(message.events(text).event().token().token_id(), 10 * step + text);
    }
  }
}

TEST_F(TokenRelayTest, AShortPromptIsInTheMessageOfItsToken) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  const std::shared_ptr<TokenRelay> relay = RelayOf(reader);
  v1::DecodeGenerateResponse prompt;
  prompt.mutable_prompt()->mutable_report()->add_chunks()->set_token_count(512);
  ASSERT_TRUE(relay->Push(1, prompt));
  ASSERT_TRUE(relay->Push(1, Token(1)));
  relays_.Flush();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.events_size(), 2);
}

TEST_F(TokenRelayTest, ALongPromptIsAMessageOfItsOwn) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  const std::shared_ptr<TokenRelay> relay = RelayOf(reader);
  v1::DecodeGenerateResponse prompt;
  for (int chunk = 0; chunk < 4096; ++chunk) {
    prompt.mutable_prompt()->mutable_report()->add_chunks()->set_token_count(512);
  }
  ASSERT_TRUE(relay->Push(1, Token(1)));
  ASSERT_TRUE(relay->Push(2, prompt));
  ASSERT_TRUE(relay->Push(2, Token(2)));
  ASSERT_TRUE(relay->Push(1, Token(3)));
  relays_.Flush();
  std::vector<int> sizes;
  for (int i = 0; i < 3; ++i) {
    v1::RelayResponse message;
    ASSERT_TRUE(reader->Read(&message));
    sizes.push_back(message.events_size());
  }
  EXPECT_THAT(sizes, ::testing::ElementsAre(1, 1, 2));
}

TEST_F(TokenRelayTest, RefusesTooMany) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<Reader> readers;
  for (size_t i = 1; i <= TokenRelays::kMaxRelays; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(Opened(*contexts.back()));
  }
  EXPECT_EQ(Refusal(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(TokenRelayTest, ARouterThatReadsNothingLosesIt) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  const std::shared_ptr<TokenRelay> relay = RelayOf(reader);
  for (size_t i = 0; i < TokenRelay::kMaxQueuedEvents; ++i) ASSERT_TRUE(relay->Push(1, Token(1)));
  EXPECT_FALSE(relay->Push(1, Token(1)));
}

TEST_F(TokenRelayTest, TakesNothingForARouterThatIsGone) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  const std::shared_ptr<TokenRelay> relay = RelayOf(reader);
  context.TryCancel();
  while (relay->Push(1, Token(1))) {
  }
  // Each makes room for the next, soon after its end.
  for (size_t opened = 0; opened <= TokenRelays::kMaxRelays;) {
    grpc::ClientContext again;
    const Reader next = stub_->Relay(&again);
    v1::RelayResponse message;
    if (next->Read(&message)) ++opened;
    again.TryCancel();
    next->Finish();
  }
}

TEST_F(TokenRelayTest, AStopEndsItAfterWhatIsQueued) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  ASSERT_TRUE(RelayOf(reader)->Push(1, Token(1)));
  relays_.Close();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.events_size(), 1);
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Refusal(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TokenRelayTest, TakesCallsAndAnswersThem) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  reader->Write(Generates({1, 2}));
  AwaitBegun(2);
  ASSERT_TRUE(streams_.at(1)->Push(Token(4)));
  streams_.at(1)->Conclude(FinishReason::kStop);
  relays_.Flush();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(message.events_size(), 2);
  EXPECT_EQ(message.events(0).event().token().token_id(), 4);
  EXPECT_EQ(message.events(1).event().finished().reason(), v1::FINISH_REASON_STOP);
  // Without the loop's flush.
  streams_.at(2)->Fail(WithLeg(absl::UnavailableError("busy"), "decode", "d0"));
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(message.events_size(), 1);
  EXPECT_EQ(message.events(0).attempt_id(), 2);
  const absl::Status failure = rpc::FromMessage(message.events(0).failure());
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(InstanceOf(failure), "d0");
}

TEST_F(TokenRelayTest, CancelsOneCallAlone) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  v1::RelayRequest request = Generates({1, 2});
  v1::RelayedCall& cancel = *request.add_calls();
  cancel.set_attempt_id(1);
  cancel.mutable_cancel();
  reader->Write(request);
  EXPECT_THAT(AwaitCancelled(1), ::testing::ElementsAre(1));
  streams_.at(1)->Conclude(absl::CancelledError("as the shell does"));
  ASSERT_TRUE(streams_.at(1)->Push(Token(4)));  // Nothing of it is told.
  ASSERT_TRUE(streams_.at(2)->Push(Token(5)));
  relays_.Flush();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(message.events_size(), 1);
  EXPECT_EQ(message.events(0).attempt_id(), 2);
}

TEST_F(TokenRelayTest, ItsEndCancelsWhatItCarries) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  reader->Write(Generates({1, 2, 3}));
  AwaitBegun(3);
  streams_.at(2)->Conclude(FinishReason::kStop);
  context.TryCancel();
  EXPECT_THAT(AwaitCancelled(2), ::testing::ElementsAre(1, 3));
}

TEST_F(TokenRelayTest, OnlyTheFirstOfAnAttemptIsCarried) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  reader->Write(Generates({1, 1, 2}));
  AwaitBegun(3);
  streams_.at(1)->Conclude(FinishReason::kLength);
  relays_.Flush();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.events_size(), 1);
}

TEST_F(TokenRelayTest, ACallThatTheReaderIsTooSlowForFailsAlone) {
  grpc::ClientContext context;
  const Reader reader = Opened(context);
  reader->Write(Generates({1, 2}));
  AwaitBegun(2);
  for (size_t i = 0; i < TokenRelay::kMaxQueuedEvents; ++i) {
    ASSERT_TRUE(streams_.at(1)->Push(Token(1)));
  }
  EXPECT_FALSE(streams_.at(1)->Push(Token(1)));
  streams_.at(1)->Break();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.events().rbegin()->failure().code(), grpc::StatusCode::CANCELLED);
  while (!streams_.at(2)->Push(Token(2))) {  // There is room soon after the message.
  }
}

}  // namespace
}  // namespace baton::worker
