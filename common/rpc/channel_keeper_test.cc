#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/sync.h"
#include "common/net/testing/open_sockets.h"
#include "common/rpc/channel.h"

namespace baton::rpc {
namespace {

using net::testing::OpenSockets;

// Takes every call, and ends it when the client does.
class AnyService : public grpc::CallbackGenericService {
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) Finish(grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer request_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor;
  }
};

// A call that is cancelled as soon as it is made.
class Call : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Call(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    stub_.PrepareBidiStreamingCall(&context_, "/any/Call", {}, this);
    StartRead(&response_);
    StartCall();
    context_.TryCancel();
  }
  void Wait() { done_.WaitForNotification(); }

 private:
  void OnDone(const grpc::Status&) override { done_.Notify(); }

  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer response_;
  Notification done_;
};

TEST(ChannelKeeperTest, NoConnectionIsLeftOfCallsThatEndWhileItIsMade) {
  AnyService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", port);
  ChannelKeeper keeper;
  Call(keeper.Open(address)).Wait();
  keeper.Sweep();
  const size_t before = OpenSockets().size();

  for (int i = 0; i < 500; ++i) {
    Call(keeper.Open(address)).Wait();
    keeper.Sweep();
  }
  for (int tries = 0; tries < 1000 && OpenSockets().size() > before; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    keeper.Sweep();
  }
  EXPECT_LE(OpenSockets().size(), before);
  server->Shutdown();
}

TEST(ChannelKeeperTest, KeepsWhatIsInUse) {
  ChannelKeeper keeper;
  const std::shared_ptr<grpc::Channel> used = keeper.Open("127.0.0.1:1");
  const std::weak_ptr<grpc::Channel> unused = keeper.Open("127.0.0.1:1");
  keeper.Sweep();
  EXPECT_EQ(used.use_count(), 2);
  EXPECT_TRUE(unused.expired());
}

}  // namespace
}  // namespace baton::rpc
