// Round trips of a call that does nothing: rpc_echo ADDRESS SECONDS asks stage 0 at ADDRESS to
// abort an attempt that it does not know, every 50 ms on one channel, and prints one flat JSON
// object of microseconds. The call passes gRPC and the stage's loop on its way, like every other.
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

constexpr useconds_t kPauseUs = 50'000;

double RoundTripUs(v1::Prefill::Stub& stub) {
  grpc::ClientContext context;
  v1::PrefillAbortRequest request;
  request.set_attempt_id(UINT64_MAX);  // No attempt has this id.
  v1::PrefillAbortResponse response;
  const int64_t begin_us = NowUs();
  const grpc::Status status = stub.Abort(&context, request, &response);
  BATON_CHECK(status.ok()) << status.error_message();
  return static_cast<double>(NowUs() - begin_us);
}

int Main(int argc, char** argv) {
  double seconds = 0;
  BATON_CHECK(argc == 3 && absl::SimpleAtod(argv[2], &seconds)) << "rpc_echo ADDRESS SECONDS";
  const auto stub = v1::Prefill::NewStub(rpc::OpenChannel(argv[1]));
  RoundTripUs(*stub);  // Connects.
  std::vector<double> us;
  const int64_t end_us = NowUs() + static_cast<int64_t>(seconds * 1e6);
  while (NowUs() < end_us) {
    usleep(kPauseUs);
    us.push_back(RoundTripUs(*stub));
  }
  BATON_CHECK(!us.empty()) << "no time for one call";
  nlohmann::ordered_json out;
  out["calls"] = us.size();
  PutQuartiles("round_trip_us", us, out);
  std::cout << out.dump() << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
