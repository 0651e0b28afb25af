// Streams of tokens over gRPC. `stream_bench` serves and reads them in this process, and prints
// what both ends take together: the least that a relay, which reads and writes, can take.
// `stream_bench ADDRESS` reads as many from a router. Prints one flat JSON object.
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "tests/bench/cpu_time.h"

namespace baton {
namespace {

using v1::GenerateRequest;
using v1::GenerateResponse;

constexpr int kStreams = 64;
constexpr int kTokens = 600;
constexpr int kPromptTokens = 16;
constexpr std::chrono::milliseconds kStep{5};

// One stream of the server: a message for each step, as many as a text has.
class Writer : public grpc::ServerWriteReactor<GenerateResponse> {
 public:
  Writer() {
    message_.set_request_id("req-0123456789abcdef01234567");
    message_.mutable_tokens()->set_text(" word");
    message_.mutable_tokens()->add_token_ids(1234);
  }
  // Whether more steps are wanted.
  bool Step() {
    MutexLock lock(&mutex_);
    ++due_;
    Advance();
    return due_ < kTokens;
  }
  void OnWriteDone(bool ok) override {
    BATON_CHECK(ok) << "the reader has gone";
    MutexLock lock(&mutex_);
    writing_ = false;
    Advance();
  }
  void OnDone() override { delete this; }

 private:
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_) return;
    if (written_ == kTokens) return Finish(grpc::Status::OK);
    if (written_ == due_) return;
    writing_ = true;
    ++written_;
    StartWrite(&message_);
  }

  GenerateResponse message_;
  Mutex mutex_;
  int due_ ABSL_GUARDED_BY(mutex_) = 0;
  int written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

class Source : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                       const GenerateRequest*) override {
    auto* writer = new Writer;
    MutexLock lock(&mutex_);
    writers_.push_back(writer);
    return writer;
  }
  // Every stream's tokens, a step at a time, once all streams are there.
  void Run() {
    std::vector<Writer*> writers;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writers_.size() == kStreams; });
      writers = writers_;
    }
    auto at = std::chrono::steady_clock::now();
    for (bool more = true; more;) {
      std::this_thread::sleep_until(at += kStep);
      for (Writer* writer : writers) more = writer->Step();
    }
  }

 private:
  Mutex mutex_;
  std::vector<Writer*> writers_ ABSL_GUARDED_BY(mutex_);
};

// One stream of the client.
class Reader : public grpc::ClientReadReactor<GenerateResponse> {
 public:
  Reader(v1::Inference::Stub& stub, const GenerateRequest& request) {
    stub.async()->Generate(&context_, &request, this);
    StartRead(&message_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++messages_;
    tokens_ += message_.tokens().token_ids_size();
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    BATON_CHECK(status.ok()) << status.error_message();
    MutexLock lock(&mutex_);
    done_ = true;
  }
  void Await() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; });
  }
  int messages() const { return messages_; }
  int tokens() const { return tokens_; }

 private:
  grpc::ClientContext context_;
  GenerateResponse message_;
  int messages_ = 0;
  int tokens_ = 0;
  Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

GenerateRequest RequestOf(int stream) {
  GenerateRequest request;
  for (int i = 0; i < kPromptTokens; ++i) {
    request.mutable_token_ids()->add_ids(100 + stream * kPromptTokens + i);
  }
  request.mutable_sampling()->set_max_tokens(kTokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

void ReadAll(const std::string& address, nlohmann::ordered_json& out) {
  const auto stub = v1::Inference::NewStub(rpc::OpenChannel(address));
  std::vector<GenerateRequest> requests;
  std::deque<Reader> readers;
  requests.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    requests.push_back(RequestOf(i));
    readers.emplace_back(*stub, requests.back());
  }
  int64_t messages = 0;
  int64_t tokens = 0;
  for (Reader& reader : readers) {
    reader.Await();
    messages += reader.messages();
    tokens += reader.tokens();
  }
  out["messages"] = messages;
  out["tokens"] = tokens;
}

int Main(int argc, char** argv) {
  nlohmann::ordered_json out;
  if (argc > 1) {
    ReadAll(argv[1], out);
  } else {
    Source source;
    const auto server = rpc::StartServer({.host = "127.0.0.1"}, {&source});
    BATON_CHECK(server.ok()) << server.status().message();
    const double begin_us = CpuUs();
    std::thread steps([&source] { source.Run(); });
    ReadAll(absl::StrCat("127.0.0.1:", server->port), out);
    steps.join();
    out["us_per_token"] = (CpuUs() - begin_us) / (double{kStreams} * kTokens);
    rpc::StopServer(*server->server);
  }
  std::cout << out.dump() << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
