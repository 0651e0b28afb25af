// All-reduce over Gloo on this host by size and ranks, beside what bounds it here, measured in the
// same run: a copy within memory, and the same bytes both ways over a loopback socket.
//   bazel run -c opt //common/collective/gloo:gloo_benchmark
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/collective/communicator.h"
#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/testing/local_wiring.h"
#include "common/collective/threaded_communicator.h"

namespace baton {
namespace {

void Report(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * static_cast<int64_t>(state.iterations()));
}

void BM_Copy(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  Report(state, bytes);
}

// Two ends of a connection over loopback, without Nagle's algorithm.
std::pair<int, int> ConnectLoopback() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  BATON_CHECK(bind(listener, generic, size) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, generic, &size) == 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  BATON_CHECK(connect(client, generic, size) == 0);
  const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
  const int on = 1;
  for (const int end : {client, server}) {
    BATON_CHECK(end >= 0 && setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return {client, server};
}

bool Transfer(int from_or_to, std::vector<std::byte>& bytes, bool send) {
  for (size_t done = 0; done < bytes.size();) {
    const size_t part = std::min(bytes.size() - done, size_t{128} << 10);
    const ssize_t moved = send ? ::send(from_or_to, bytes.data() + done, part, MSG_NOSIGNAL)
                               : ::recv(from_or_to, bytes.data() + done, part, 0);
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

// An echo: `bytes` there and `bytes` back, what two ranks exchange, by sockets alone.
void BM_SocketEcho(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto [client, server] = ConnectLoopback();
  std::vector<std::byte> here_out(bytes);
  std::vector<std::byte> here_in(bytes);
  std::thread there([&, end = server] {
    std::vector<std::byte> in(bytes);
    std::vector<std::byte> out(bytes);
    while (Transfer(end, in, false) && Transfer(end, out, true)) {
    }
  });
  for (auto _ : state) {
    BATON_CHECK(Transfer(client, here_out, true) && Transfer(client, here_in, false));
  }
  Report(state, bytes);
  shutdown(client, SHUT_RDWR);
  there.join();
  close(client);
  close(server);
}

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size) {
  testing::LocalWiring wiring("stage 1", 60'000);
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto caller = static_cast<Rendezvous::Caller>(rank);
      const auto store = std::make_shared<BootstrapStore>(
          [&wiring, caller](const std::string& key, const std::string& value) {
            wiring.Set(caller, key, value);
          });
      wiring.Join(caller, {.epoch = 1, .rank = rank, .size = size, .member = "m"},
                  [store](const Rendezvous::Message& message) {
                    if (message.entry) store->Put(message.entry->key, message.entry->value);
                  });
      auto transport = ConnectGloo({.rank = rank, .size = size}, store);
      BATON_CHECK(transport.ok()) << transport.status();
      GroupDescription group = {.name = "stage 1", .epoch = 1, .rank = rank};
      group.members.assign(static_cast<size_t>(size), "m");
      auto communicator = ThreadedCommunicator::Create(group, {}, *std::move(transport),
                                                       /*form_timeout_ms=*/60'000);
      BATON_CHECK(communicator.ok()) << communicator.status();
      ranks[rank] = *std::move(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// Arguments: bytes, ranks. All ranks are in this process, so they share its cores.
void BM_AllReduce(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  auto ranks = MakeGroup(static_cast<int>(state.range(1)));
  std::vector<std::vector<float>> tensors(ranks.size(), std::vector<float>(bytes / sizeof(float)));
  for (auto _ : state) {
    Pending pending;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank]->AllReduce(HostTensor(tensors[rank], 1), pending.Add());
    }
    const absl::Status status = pending.Wait();
    BATON_CHECK(status.ok()) << status;
  }
  Report(state, bytes);
  std::vector<std::thread> leaving;
  leaving.reserve(ranks.size());
  for (auto& rank : ranks) leaving.emplace_back([&rank] { rank.reset(); });
  for (std::thread& thread : leaving) thread.join();
}

constexpr int64_t kSizes[] = {64, 16 << 10, 256 << 10, 4 << 20, 64 << 20};

void Sizes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t bytes : kSizes) benchmark->Arg(bytes);
}
void SizesAndRanks(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t bytes : kSizes) benchmark->Args({bytes, ranks});
  }
}

BENCHMARK(BM_Copy)->ArgName("bytes")->Apply(Sizes)->UseRealTime();
BENCHMARK(BM_SocketEcho)->ArgName("bytes")->Apply(Sizes)->UseRealTime();
BENCHMARK(BM_AllReduce)->ArgNames({"bytes", "ranks"})->Apply(SizesAndRanks)->UseRealTime();

}  // namespace
}  // namespace baton
