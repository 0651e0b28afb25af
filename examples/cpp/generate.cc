// Continues a prompt through Baton's gRPC service and prints the text as it comes:
//   bazel run //examples/cpp:generate -- 127.0.0.1:30001 "It was a truth"
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "proto/baton/v1/inference.grpc.pb.h"

namespace {

int Generate(const std::string& target, const std::string& prompt) {
  const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  const auto stub = baton::v1::Inference::NewStub(channel);

  baton::v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(0.8F);
  request.mutable_sampling()->set_top_p(0.95F);
  request.mutable_sampling()->set_max_tokens(64);

  grpc::ClientContext context;  // Its cancellation, or its end, aborts the request everywhere.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  const auto reader = stub->Generate(&context, request);
  baton::v1::GenerateResponse response;
  while (reader->Read(&response)) {
    const std::string& text =
        response.has_tokens() ? response.tokens().text() : response.finished().text();
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) {
    std::fprintf(stderr, "%d: %s\n", status.error_code(), status.error_message().c_str());
    return 1;
  }
  const auto& finished = response.finished();
  std::printf("\n[%d + %d tokens, first after %.1f ms]\n", finished.usage().prompt_tokens(),
              finished.usage().completion_tokens(),
              static_cast<double>(finished.timing().ttft_us()) / 1000);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate HOST:PORT PROMPT\n");
    return 2;
  }
  return Generate(argv[1], argv[2]);
}
