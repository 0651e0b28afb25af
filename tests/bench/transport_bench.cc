// Bandwidth of the data plane between two threads of one process, beside memcpy of the same
// buffers: transport_bench [--rounds=N] [--kib=N] prints one flat JSON object. --kib: messages of
// this size alone. Both sides walk through 256 MiB, so that no buffer is in the cache when its turn
// comes. Variants take turns within a round, since the machine's speed drifts; medians and the
// interquartile range are given.
//
// Each transport is a process of its own (UCX reads UCX_TLS when it starts): the program runs
// itself once per transport and merges what they print.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/device/memory.h"
#include "common/transport/data_plane.h"

namespace baton {
namespace {

constexpr size_t kArenaBytes = 256 << 20;
// "pull": the receiver reads out of the sender's memory, as `--kv-transport auto` does on one host.
constexpr const char* kTransports[] = {"shm", "tcp", "pull"};

// Places messages one after the other in an arena, and counts them down.
class Sink : public MessageHandler {
 public:
  explicit Sink(std::span<std::byte> arena) : arena_(arena) {}
  void Expect(absl::BlockingCounter* left) {
    left_ = left;
    offset_ = 0;
  }
  std::optional<Placement> OnHeader(std::span<const std::byte>, size_t payload_bytes) override {
    if (offset_ + payload_bytes > arena_.size()) return std::nullopt;
    Placement placement;
    placement.runs.emplace_back(arena_.data() + offset_, payload_bytes);
    offset_ += payload_bytes;
    return placement;
  }
  void OnPlaced(uint64_t, const absl::Status& status) override {
    BATON_CHECK(status.ok()) << status;
    left_->DecrementCount();
  }

 private:
  const std::span<std::byte> arena_;
  absl::BlockingCounter* left_ = nullptr;
  size_t offset_ = 0;
};

double GigabytesPerSecond(int64_t start_us) {
  return static_cast<double>(kArenaBytes) / static_cast<double>(NowUs() - start_us) / 1e3;
}

double SendArena(DataPlane& plane, PeerId peer, Sink& sink, std::span<const std::byte> arena,
                 size_t message_bytes) {
  absl::BlockingCounter left(static_cast<int>(kArenaBytes / message_bytes));
  sink.Expect(&left);
  const int64_t start_us = NowUs();
  for (size_t offset = 0; offset < kArenaBytes; offset += message_bytes) {
    Outgoing message{.kind = MessageKind::kKvPages, .header = std::vector<std::byte>(64)};
    message.runs.emplace_back(arena.data() + offset, message_bytes);
    message.on_sent = [](const absl::Status& status) { BATON_CHECK(status.ok()) << status; };
    plane.Send(peer, std::move(message));
  }
  left.Wait();
  return GigabytesPerSecond(start_us);
}

double CopyArena(std::span<std::byte> to, std::span<const std::byte> from, size_t message_bytes) {
  const int64_t start_us = NowUs();
  for (size_t offset = 0; offset < kArenaBytes; offset += message_bytes) {
    std::memcpy(to.data() + offset, from.data() + offset, message_bytes);
  }
  return GigabytesPerSecond(start_us);
}

using Samples = std::map<std::string, std::vector<double>>;

// One transport, in this process; UCX_TLS is set.
Samples Measure(const std::string& transport, int rounds,
                const std::vector<size_t>& message_bytes) {
  // As activations are allocated.
  MemoryBuffer from_buffer = *AllocateHost(kArenaBytes);
  MemoryBuffer to_buffer = *AllocateHost(kArenaBytes);
  const std::span<std::byte> from = from_buffer.span().Host();
  const std::span<std::byte> to = to_buffer.span().Host();
  std::fill(from.begin(), from.end(), std::byte{1});
  std::fill(to.begin(), to.end(), std::byte{2});
  Sink sink(to);
  DataPlaneOptions options;
  options.pull = transport == "pull";
  std::unique_ptr<DataPlane> sender = *DataPlane::Create(options);
  std::unique_ptr<DataPlane> receiver = *DataPlane::Create(options);
  BATON_CHECK(receiver->Register(MessageKind::kKvPages, &sink).ok());
  const PeerId peer = *sender->Connect(receiver->address());
  Samples samples;
  for (int round = 0; round <= rounds; ++round) {
    for (size_t bytes : message_bytes) {
      const double sent = SendArena(*sender, peer, sink, from, bytes);
      const double copied = CopyArena(to, from, bytes);
      if (round == 0) continue;  // First touch of pages and connections.
      const std::string name = absl::StrCat(transport, "_", bytes >> 10, "kib");
      samples[name].push_back(sent);
      samples[absl::StrCat("memcpy_beside_", name)].push_back(copied);
    }
  }
  // Or the figures are another transport's.
  BATON_CHECK((receiver->counters().bytes_pulled > 0) == options.pull) << transport;
  sender->Shutdown();
  receiver->Shutdown();
  return samples;
}

void PrintJson(const Samples& samples) {
  nlohmann::ordered_json json;
  for (auto [name, values] : samples) {
    std::sort(values.begin(), values.end());
    json[name + "_gb_per_s"] = values[values.size() / 2];
    json[name + "_gb_per_s_iqr"] = values[values.size() * 3 / 4] - values[values.size() / 4];
  }
  std::cout << json.dump() << std::endl;
}

// Runs this program for one transport and reads its object.
nlohmann::ordered_json RunFor(const std::string& transport, int rounds) {
  const std::string command =
      absl::StrCat("UCX_TLS=", transport == "shm" ? "shm" : "tcp", ",self exec /proc/", getpid(),
                   "/exe --transport=", transport, " --rounds=", rounds);
  FILE* output = popen(command.c_str(), "r");
  BATON_CHECK(output != nullptr);
  std::string text;
  for (int c = fgetc(output); c != EOF; c = fgetc(output)) text.push_back(static_cast<char>(c));
  BATON_CHECK(pclose(output) == 0) << transport;
  return nlohmann::ordered_json::parse(text);
}

int Main(int argc, char** argv) {
  int rounds = 7;
  std::string transport;
  std::vector<size_t> message_bytes = {64 << 10, 1 << 20, 16 << 20};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--rounds=", 0) == 0) rounds = std::max(1, atoi(argument.c_str() + 9));
    if (argument.rfind("--transport=", 0) == 0) transport = argument.substr(12);
    if (argument.rfind("--kib=", 0) == 0) {
      const auto kib = static_cast<size_t>(std::clamp(atoi(argument.c_str() + 6), 1, 256 << 10));
      BATON_CHECK((kArenaBytes >> 10) % kib == 0) << kib << " KiB do not divide 256 MiB";
      message_bytes = {kib << 10};
    }
  }
  BATON_CHECK(InitLogging("warning", "transport_bench").ok());
  if (!transport.empty()) {
    PrintJson(Measure(transport, rounds, message_bytes));
    return EXIT_SUCCESS;
  }
  nlohmann::ordered_json all;
  for (const char* name : kTransports) all.update(RunFor(name, rounds));
  all["rounds"] = rounds;
  std::cout << all.dump(2) << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
