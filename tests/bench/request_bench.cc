// Whole requests, of 512 tokens and one answered. `request_bench many|alone WHOM [ADDRESS]` makes
// many at once and prints the processor time that each takes in this process, or one after the
// other and prints their latency. WHOM: `echo`, a server in this process that answers at once;
// `router`; or `chain`, stage 0 of a colocated chain, called as a router calls it.
#include <grpcpp/client_context.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/sync.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/types/instance.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "tests/bench/cpu_time.h"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

constexpr int kRequests = 2000;
constexpr int kAtOnce = 16;
constexpr int kAlone = 400;
constexpr int kPromptTokens = 512;
constexpr int kIds = 4000;

// Answers as a router does: a token, then the end.
class Echo : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest*) override {
    return new Answer;
  }

 private:
  class Answer : public grpc::ServerWriteReactor<v1::GenerateResponse> {
   public:
    Answer() {
      token_.set_request_id("req-0123456789abcdef01234567");
      end_.set_request_id(token_.request_id());
      token_.mutable_tokens()->set_text(" word");
      token_.mutable_tokens()->add_token_ids(1234);
      end_.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
      end_.mutable_finished()->mutable_usage()->set_prompt_tokens(kPromptTokens);
      StartWrite(&token_);
    }
    void OnWriteDone(bool ok) override {
      BATON_CHECK(ok) << "the client has gone";
      if (std::exchange(ending_, true)) return Finish(grpc::Status::OK);
      StartWrite(&end_);
    }
    void OnDone() override { delete this; }

   private:
    v1::GenerateResponse token_;
    v1::GenerateResponse end_;
    bool ending_ = false;
  };
};

// `total` calls, so many of them at once; each that ends begins the next.
template <typename Request, typename Response>
class Load {
 public:
  using Reactor = grpc::ClientReadReactor<Response>;
  using Start = std::function<void(grpc::ClientContext*, const Request*, Reactor*)>;
  Load(std::function<Request(int)> make, Start start)
      : make_(std::move(make)), start_(std::move(start)) {}

  std::vector<double> Run(int total, int at_once) {
    {
      MutexLock lock(&mutex_);
      left_ = total;
      took_us_.clear();
    }
    for (int i = 0; i < at_once; ++i) Next();
    MutexLock lock(&mutex_);
    mutex_.Await([this, total]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return took_us_.size() == static_cast<size_t>(total);
    });
    return took_us_;
  }

 private:
  class Call : public Reactor {
   public:
    Call(Load& load, int number) : load_(load), request_(load.make_(number)) {
      load_.start_(&context_, &request_, this);
      this->StartRead(&response_);
      this->StartCall();
    }
    void OnReadDone(bool ok) override {
      if (ok) this->StartRead(&response_);
    }
    void OnDone(const grpc::Status& status) override {
      BATON_CHECK(status.ok()) << status.error_message();
      load_.Ended(static_cast<double>(NowUs() - begun_us_));
      delete this;
    }

   private:
    Load& load_;
    const Request request_;
    const int64_t begun_us_ = NowUs();
    grpc::ClientContext context_;
    Response response_;
  };

  void Next() {
    int number = 0;
    {
      MutexLock lock(&mutex_);
      if (left_ == 0) return;
      --left_;
      number = ++begun_;
    }
    new Call(*this, number);  // Deletes itself.
  }
  void Ended(double took_us) {
    Next();
    MutexLock lock(&mutex_);
    took_us_.push_back(took_us);
  }

  const std::function<Request(int)> make_;
  const Start start_;
  Mutex mutex_;
  int left_ ABSL_GUARDED_BY(mutex_) = 0;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<double> took_us_ ABSL_GUARDED_BY(mutex_);
};

std::vector<int32_t> PromptOf(int number) {
  std::vector<int32_t> ids;
  ids.reserve(kPromptTokens);
  Random random(static_cast<uint64_t>(number) + 1);
  for (int i = 0; i < kPromptTokens; ++i) ids.push_back(static_cast<int32_t>(random.Below(kIds)));
  return ids;
}

void SetSampling(v1::SamplingParams& sampling) {
  sampling.set_max_tokens(1);
  sampling.set_ignore_eos(true);
  sampling.set_temperature(0);
  sampling.set_seed(1);
}

template <typename Request, typename Response>
void Measure(Load<Request, Response>& load, bool many, nlohmann::ordered_json& out) {
  load.Run(kAtOnce, kAtOnce);  // Connects.
  if (many) {
    const double begun_us = CpuUs();
    load.Run(kRequests, kAtOnce);
    out["cpu_us"] = (CpuUs() - begun_us) / kRequests;
    out["requests"] = kRequests;
  } else {
    const std::vector<double> us = load.Run(kAlone, 1);
    PutQuartiles("latency_us", us, out);
    out["latency_us_p99"] = Quantile(us, 0.99);
  }
}

void AskFront(const std::string& address, bool many, nlohmann::ordered_json& out) {
  const auto stub = v1::Inference::NewStub(rpc::OpenChannel(address));
  Load<v1::GenerateRequest, v1::GenerateResponse> load(
      [](int number) {
        v1::GenerateRequest request;
        const std::vector<int32_t> ids = PromptOf(number);
        request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
        SetSampling(*request.mutable_sampling());
        return request;
      },
      [&stub](auto* context, auto* request, auto* reactor) {
        stub->async()->Generate(context, request, reactor);
      });
  Measure(load, many, out);
}

void AskChain(const std::string& address, bool many, nlohmann::ordered_json& out) {
  const auto stub = v1::Prefill::NewStub(rpc::OpenChannel(address));
  const uint64_t first_attempt = EntropySeed();
  Load<v1::StartRequest, v1::DecodeGenerateResponse> load(
      [first_attempt](int number) {
        v1::StartRequest request;
        request.set_attempt_id(first_attempt + static_cast<uint64_t>(number));
        const std::vector<int32_t> ids = PromptOf(number);
        request.mutable_fixed_prompt_token_ids()->Assign(ids.begin(), ids.end());
        SetSampling(*request.mutable_sampling());
        request.set_timeout_ms(60'000);
        return request;
      },
      [&stub](auto* context, auto* request, auto* reactor) {
        stub->async()->Generate(context, request, reactor);
      });
  Measure(load, many, out);
}

int Main(int argc, char** argv) {
  BATON_CHECK(argc >= 3) << "request_bench many|alone echo|router|chain [ADDRESS]";
  const bool many = std::string(argv[1]) == "many";
  const std::string whom = argv[2];
  nlohmann::ordered_json out;
  if (whom == "echo") {
    Echo echo;
    const auto server = rpc::StartServer({.host = "127.0.0.1"}, {&echo});
    BATON_CHECK(server.ok()) << server.status().message();
    AskFront(absl::StrCat("127.0.0.1:", server->port), many, out);
    rpc::StopServer(*server->server);
  } else {
    BATON_CHECK(argc == 4) << "request_bench many|alone " << whom << " ADDRESS";
    whom == "router" ? AskFront(argv[3], many, out) : AskChain(argv[3], many, out);
  }
  std::cout << out.dump() << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
