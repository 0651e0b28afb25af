#include "services/worker/token_relay.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/baton/v1/decode.grpc.pb.h"

namespace baton::worker {
namespace {

v1::DecodeGenerateResponse Token(int32_t id) {
  v1::DecodeGenerateResponse event;
  event.mutable_token()->set_token_id(id);
  return event;
}

class Service : public v1::Decode::CallbackService {
 public:
  explicit Service(TokenRelays& relays) : relays_(relays) {}
  grpc::ServerWriteReactor<v1::RelayResponse>* Relay(grpc::CallbackServerContext* /*context*/,
                                                     const v1::RelayRequest* request) override {
    return relays_.Open(*request);
  }

 private:
  TokenRelays& relays_;
};

class TokenRelayTest : public ::testing::Test {
 protected:
  using Reader = std::unique_ptr<grpc::ClientReader<v1::RelayResponse>>;

  TokenRelayTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Decode::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                    grpc::InsecureChannelCredentials()));
  }
  ~TokenRelayTest() override {
    relays_.Close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
  }

  Reader Open(grpc::ClientContext& context, uint64_t relay_id) {
    v1::RelayRequest request;
    request.set_relay_id(relay_id);
    return stub_->Relay(&context, request);
  }
  // The code that ends a call which is refused.
  grpc::StatusCode Refusal(uint64_t relay_id) {
    grpc::ClientContext context;
    const Reader reader = Open(context, relay_id);
    v1::RelayResponse message;
    EXPECT_FALSE(reader->Read(&message));
    return reader->Finish().error_code();
  }
  // One that is open: its first message has come.
  Reader Opened(grpc::ClientContext& context, uint64_t relay_id) {
    Reader reader = Open(context, relay_id);
    v1::RelayResponse message;
    EXPECT_TRUE(reader->Read(&message));
    EXPECT_EQ(message.events_size(), 0);
    return reader;
  }

  TokenRelays relays_;
  Service service_{relays_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

TEST_F(TokenRelayTest, AStepIsOneMessage) {
  grpc::ClientContext context;
  const Reader reader = Opened(context, 7);
  const std::shared_ptr<TokenRelay> relay = relays_.Find(7);
  ASSERT_NE(relay, nullptr);
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
  const Reader reader = Opened(context, 7);
  const std::shared_ptr<TokenRelay> relay = relays_.Find(7);
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
  const Reader reader = Opened(context, 7);
  const std::shared_ptr<TokenRelay> relay = relays_.Find(7);
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

TEST_F(TokenRelayTest, RefusesWhatIsNone) {
  EXPECT_EQ(Refusal(0), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  const Reader reader = Opened(context, 7);
  EXPECT_EQ(Refusal(7), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_NE(relays_.Find(7), nullptr);
  EXPECT_EQ(relays_.Find(8), nullptr);
}

TEST_F(TokenRelayTest, RefusesTooMany) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<Reader> readers;
  for (size_t i = 1; i <= TokenRelays::kMaxRelays; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(Opened(*contexts.back(), i));
  }
  EXPECT_EQ(Refusal(1000), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(TokenRelayTest, ARouterThatReadsNothingLosesIt) {
  grpc::ClientContext context;
  const Reader reader = Opened(context, 7);
  const std::shared_ptr<TokenRelay> relay = relays_.Find(7);
  for (size_t i = 0; i < TokenRelay::kMaxQueuedEvents; ++i) ASSERT_TRUE(relay->Push(1, Token(1)));
  EXPECT_FALSE(relay->Push(1, Token(1)));
}

TEST_F(TokenRelayTest, TakesNothingForARouterThatIsGone) {
  grpc::ClientContext context;
  const Reader reader = Opened(context, 7);
  const std::shared_ptr<TokenRelay> relay = relays_.Find(7);
  context.TryCancel();
  while (relay->Push(1, Token(1))) {
  }
  while (relays_.Find(7) != nullptr) {
  }
  grpc::ClientContext again;
  Opened(again, 7);
}

TEST_F(TokenRelayTest, AStopEndsItAfterWhatIsQueued) {
  grpc::ClientContext context;
  const Reader reader = Opened(context, 7);
  ASSERT_TRUE(relays_.Find(7)->Push(1, Token(1)));
  relays_.Close();
  v1::RelayResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.events_size(), 1);
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Refusal(8), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace baton::worker
