// One rank of an isolated row-parallel layer over Gloo, for row_parallel_bench.py:
//   row_parallel_rank RANK SIZE HOST HIDDEN INPUTS
// says "set KEY VALUE" (in hexadecimal) and hears "put KEY VALUE" until it says "formed". Then it
// answers, in microseconds, "matmul TOKENS" (this rank's part of the product), "reduce TOKENS" (the
// sums), and "layer TOKENS CHUNKS" (both; 0 chunks: auto, measured at that moment) with "us TIME
// CHUNKS", until its stdin ends.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/threaded_communicator.h"
#include "common/engine/native/native_linear.h"
#include "common/engine/ranks/rank_group.h"
#include "common/engine/requirements.h"

namespace baton {
namespace {

void Say(const std::string& line) {
  static Mutex* const mutex = new Mutex;
  MutexLock lock(mutex);
  std::cout << line << std::endl;
}

std::shared_ptr<Communicator> Connect(TensorRank rank, const std::string& host,
                                      const std::shared_ptr<BootstrapStore>& store) {
  auto transport = ConnectGloo({.rank = rank.rank, .size = rank.size, .host = host}, store);
  BATON_CHECK(transport.ok()) << transport.status();
  GroupDescription group = {.name = "the layer", .epoch = 1, .rank = rank.rank};
  for (int i = 0; i < rank.size; ++i) group.members.push_back(absl::StrCat("rank-", i));
  auto communicator = ThreadedCommunicator::Create(group, {}, *std::move(transport),
                                                   /*form_timeout_ms=*/60'000);
  BATON_CHECK(communicator.ok()) << communicator.status();
  return *std::move(communicator);
}

// A projection of which this rank has `inputs` of the columns.
class Layer {
 public:
  Layer(TensorRank rank, int hidden, int inputs, std::shared_ptr<Communicator> communicator)
      : rank_(rank),
        hidden_(hidden),
        inputs_(inputs),
        communicator_(std::move(communicator)),
        threads_(1),
        linear_(MakeNativeLinear(hidden, inputs, ElementType::kBFloat16, *kernels::FindKernels(""),
                                 threads_)) {
    const std::vector<uint16_t> row(static_cast<size_t>(inputs), 0x3c00);
    for (int i = 0; i < hidden; ++i) {
      linear_->SetRows(reinterpret_cast<const std::byte*>(row.data()), nullptr, i, 1);
    }
  }

  std::string Answer(const std::string& verb, int tokens, int chunks) {
    x_.resize(static_cast<size_t>(tokens) * static_cast<size_t>(inputs_), 0.5f);
    // As many chunks as are asked for, whatever the tokens; the product alone needs no group.
    RankGroup group(rank_, {chunks, 1}, hidden_);
    Check(group.Join(communicator_, [this](int rows) {
      std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(hidden_));
      std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(inputs_), 0.5f);
      Multiply(x.data(), rows, y.data());
    }));
    Check(group.Begin(tokens));
    // Memory is touched, and the ranks begin together.
    std::fill_n(group.Rows(0), static_cast<size_t>(tokens) * static_cast<size_t>(hidden_), 0.0f);
    float start = 0;
    Check(group.Sum(std::span(&start, 1)));
    const int64_t begun_us = NowUs();
    for (size_t chunk = 0; chunk < group.chunks().size(); ++chunk) {
      const IndexRange rows = group.chunks()[chunk];
      if (verb != "reduce") {
        Multiply(&x_[static_cast<size_t>(rows.begin) * static_cast<size_t>(inputs_)], rows.size(),
                 group.Rows(rows.begin));
      }
      if (verb != "matmul") group.Reduce(chunk);
    }
    for (size_t chunk = 0; verb != "matmul" && chunk < group.chunks().size(); ++chunk) {
      Check(group.Await(chunk));
    }
    return absl::StrCat("us ", NowUs() - begun_us, " ", group.chunks().size());
  }

 private:
  static void Check(const absl::Status& status) { BATON_CHECK(status.ok()) << status; }

  void Multiply(const float* x, int rows, float* y) const {
    for (int begin = 0; begin < rows; begin += kRowBlock) {
      linear_->Apply(x + static_cast<size_t>(begin) * static_cast<size_t>(inputs_),
                     std::min(kRowBlock, rows - begin),
                     y + static_cast<size_t>(begin) * static_cast<size_t>(hidden_));
    }
  }

  const TensorRank rank_;
  const int hidden_;
  const int inputs_;
  const std::shared_ptr<Communicator> communicator_;
  ThreadPool threads_;
  const std::unique_ptr<Linear> linear_;
  std::vector<float> x_;
};

int Main(int argc, char** argv) {
  BATON_CHECK(argc == 6);
  const TensorRank rank = {std::atoi(argv[1]), std::atoi(argv[2])};
  const auto store =
      std::make_shared<BootstrapStore>([](const std::string& key, const std::string& value) {
        Say(absl::StrCat("set ", absl::BytesToHexString(key), " ", absl::BytesToHexString(value)));
      });
  std::shared_ptr<Communicator> communicator;
  std::thread connecting([&] {
    communicator = Connect(rank, argv[3], store);
    Say("formed");
  });
  std::unique_ptr<Layer> layer;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "put") {
      std::string key;
      std::string value;
      words >> key >> value;
      store->Put(absl::HexStringToBytes(key), absl::HexStringToBytes(value));
      continue;
    }
    if (layer == nullptr) {
      connecting.join();
      layer = std::make_unique<Layer>(rank, std::atoi(argv[4]), std::atoi(argv[5]), communicator);
    }
    int tokens = 0;
    int chunks = 1;
    words >> tokens >> chunks;
    Say(layer->Answer(verb, tokens, chunks));
  }
  if (connecting.joinable()) connecting.join();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
