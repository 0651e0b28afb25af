// One side of a KV hand-off over a real network, with the senders and receivers of the services and
// no model: `handoff_peer decode|prefill CHUNKS CHUNK_MIB LEASE_MS`. dataplane.py starts one of
// each, each in its network namespace, and carries lines of JSON between them.
//
// The decode side grants one slot for each chunk at the start, so that the last one's lease has to
// outlive all others' bytes. The prefill side sends the chunks at once, and every 20 ms a control
// message that carries the time: both processes read one clock, so its age at arrival is the
// latency of control behind bulk data.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/telemetry/metrics.h"
#include "common/transport/data_plane.h"
#include "services/decode/kv_receiver.h"
#include "services/prefill/stage/kv_sender.h"

namespace baton {
namespace {

using Json = nlohmann::json;

const InstanceRef kDecode{"decode-0", 77};
const InstanceRef kPrefill{"prefill-0", 11};
// A page of Llama-3-8B in float32: 4 MiB.
constexpr int kLayers = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kPageSize = 16;
constexpr int64_t kProbePeriodUs = 20'000;
// A kind that no service uses.
constexpr auto kProbeKind = static_cast<MessageKind>(kMaxMessageKinds - 1);

struct Settings {
  int chunks = 0;
  int pages = 0;  // Per chunk.
  int64_t lease_us = 0;
};

void Say(std::initializer_list<std::pair<const char*, Json>> fields) {
  Json line = Json::object();
  for (const auto& [name, value] : fields) line[name] = value;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::cout << line.dump() << std::endl;
}

std::string ReadLine() {
  std::string line;
  BATON_CHECK(std::getline(std::cin, line).good()) << "the other side is gone";
  return line;
}

// Pages without a model.
class PagesOnly final : public StageModel {
 public:
  explicit PagesOnly(int page_count) {
    config_.num_hidden_layers = kLayers;
    kv_ = {.layer_begin = 0,
           .layer_end = kLayers,
           .kv_heads = kKvHeads,
           .head_dim = kHeadDim,
           .page_size = kPageSize,
           .page_count = page_count};
    memory_.resize(kv_.PageBytes() * static_cast<size_t>(page_count));
    for (size_t i = 0; i < memory_.size(); i += 64) memory_[i] = static_cast<std::byte>(i >> 6);
    kv_memory_ = std::make_unique<HostKvMemory>(kv_, memory_);
  }
  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return *kv_memory_; }
  absl::Status Forward(const Batch&, const TensorView&, const TensorView&,
                       std::span<float>) override {
    return absl::UnimplementedError("pages only");
  }

 private:
  ModelConfig config_;
  KvGeometry kv_;
  std::vector<std::byte> memory_;
  std::unique_ptr<HostKvMemory> kv_memory_;
};

// Notes the age of every probe. Data thread, but for Report after Shutdown.
class Probes final : public MessageHandler {
 public:
  std::optional<Placement> OnHeader(std::span<const std::byte> header, size_t) override {
    int64_t sent_us = 0;
    if (header.size() != sizeof(sent_us)) return std::nullopt;
    std::memcpy(&sent_us, header.data(), sizeof(sent_us));
    ages_us_.push_back(NowUs() - sent_us);
    return Placement{};
  }
  void OnPlaced(uint64_t, const absl::Status&) override {}

  Json Report() {
    std::sort(ages_us_.begin(), ages_us_.end());
    if (ages_us_.empty()) return Json::object({{"probes", 0}});
    const auto at = [this](double share) {
      const auto last = static_cast<double>(ages_us_.size() - 1);
      return static_cast<double>(ages_us_[static_cast<size_t>(share * last)]) * 1e-3;
    };
    return Json::object({{"probes", ages_us_.size()},
                         {"p50_ms", at(0.5)},
                         {"p99_ms", at(0.99)},
                         {"max_ms", at(1)}});
  }

 private:
  std::vector<int64_t> ages_us_;
};

KvLayout Layout() { return {kLayers, kKvHeads, kHeadDim, kPageSize, sizeof(float)}; }

Metrics MakeMetrics(MetricRole role, const InstanceRef& self) {
  return Metrics({.role = role, .model_name = "none", .instance_id = self.id});
}

// Grants every chunk, waits for its commit or failure, and says what came of it.
int RunDecode(const Settings& settings) {
  ThreadedExecutor executor(std::make_unique<PagesOnly>(settings.chunks * settings.pages), "");
  Metrics metrics = MakeMetrics(MetricRole::kDecode, kDecode);
  Probes probes;
  auto plane = DataPlane::Create({}).value();
  std::atomic<int> left{settings.chunks};
  std::atomic<int> failed{0};
  Notification done;
  decode::KvReceiver::Options options;
  options.table = {.self = kDecode,
                   .layout = Layout(),
                   .slots = static_cast<uint32_t>(settings.chunks),
                   .writer_lease_us = settings.lease_us};
  options.executor = &executor;
  options.data_plane = plane.get();
  options.metrics = &metrics;
  options.deliver = [&](const std::vector<LeaseEvent>& events) {
    for (const LeaseEvent& event : events) {
      if (const auto* failure = std::get_if<KvFailed>(&event)) {
        ++failed;
        Say({{"lost", failure->generation}, {"why", failure->status.message()}});
      } else if (const auto* committed = std::get_if<KvCommitted>(&event)) {
        Say({{"committed", committed->generation}, {"bytes", committed->bytes}});
      } else {
        continue;
      }
      if (--left == 0) done.Notify();
    }
    return true;
  };
  decode::KvReceiver receiver(std::move(options));
  BATON_CHECK(receiver.Start().ok() && plane->Register(kProbeKind, &probes).ok()) << "register";
  for (int chunk = 0; chunk < settings.chunks; ++chunk) {
    KvGrant grant;
    grant.slot = static_cast<uint32_t>(chunk);
    grant.generation = static_cast<uint64_t>(chunk) + 1;
    grant.writers = {{kPrefill, {0, kLayers}}};
    for (int page = 0; page < settings.pages; ++page) {
      grant.pages.push_back(chunk * settings.pages + page);
    }
    receiver.Grant(std::move(grant));
  }
  receiver.After([&] { Say({{"address", absl::BytesToHexString(plane->address())}}); });
  done.WaitForNotification();
  plane->Shutdown();
  Say({{"leases_lost", failed.load()}, {"control", probes.Report()}});
  return 0;
}

void SendProbe(DataPlane& plane, PeerId peer) {
  const int64_t now_us = NowUs();
  Outgoing message;
  message.kind = kProbeKind;
  message.header.resize(sizeof(now_us));
  std::memcpy(message.header.data(), &now_us, sizeof(now_us));
  plane.Send(peer, std::move(message));
}

// Sends every chunk and its commit at once, as a stage does whose plans are done.
int RunPrefill(const Settings& settings) {
  ThreadedExecutor executor(std::make_unique<PagesOnly>(settings.pages), "");
  Metrics metrics = MakeMetrics(MetricRole::kPrefill, kPrefill);
  auto plane = DataPlane::Create({}).value();
  const std::string address = absl::HexStringToBytes(ReadLine());
  const PeerId peer = plane->Connect(address).value();
  std::atomic<int> left{2 * settings.chunks};
  Notification done;
  prefill::KvSender::Options options;
  options.self = kPrefill;
  options.executor = &executor;
  options.data_plane = plane.get();
  options.metrics = &metrics;
  options.find_peer = [peer](const InstanceRef&) { return peer; };
  options.on_event = [&](const prefill::StageEvent& event) {
    const auto* sent = std::get_if<prefill::KvSent>(&event);
    if (sent != nullptr && !sent->status.ok()) Say({{"not_sent", sent->status.message()}});
    if (--left == 0) done.Notify();
  };
  prefill::KvSender sender(std::move(options));
  int64_t next_heartbeat_us = 0;
  plane->SetTimer(kProbePeriodUs, [&](int64_t now_us) {
    SendProbe(*plane, peer);
    if (now_us < next_heartbeat_us) return;
    next_heartbeat_us = now_us + settings.lease_us / 6;
    sender.SendHeartbeats({peer});
  });
  const int64_t begun_us = NowUs();
  std::vector<int> pages(static_cast<size_t>(settings.pages));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int>(i);
  for (int chunk = 0; chunk < settings.chunks; ++chunk) {
    const auto generation = static_cast<uint64_t>(chunk) + 1;
    const Ticket ticket{.decode = kDecode,
                        .slot = static_cast<uint32_t>(chunk),
                        .generation = generation,
                        .prompt_tokens = settings.pages * kPageSize,
                        .prompt_pages = settings.pages};
    sender.Send({1, 2 * generation, generation, ticket, 0, pages});
    sender.Commit({1, 2 * generation + 1, generation, ticket, SampledToken{}});
  }
  const int64_t queued_us = NowUs();
  done.WaitForNotification();
  Say({{"queued_ms", static_cast<double>(queued_us - begun_us) * 1e-3},
       {"sent_ms", static_cast<double>(NowUs() - begun_us) * 1e-3}});
  std::string rest;
  std::getline(std::cin, rest);  // Until the other side has all.
  plane->Shutdown();
  return 0;
}

int Run(int argc, char** argv) {
  Settings settings;
  int chunk_mib = 0;
  int lease_ms = 0;
  if (argc == 5) {
    settings.chunks = std::atoi(argv[2]);
    chunk_mib = std::atoi(argv[3]);
    lease_ms = std::atoi(argv[4]);
  }
  const std::string role = argc > 1 ? argv[1] : "";
  if (settings.chunks < 1 || chunk_mib < 4 || lease_ms < 1 ||
      (role != "decode" && role != "prefill")) {
    std::cerr << "handoff_peer decode|prefill CHUNKS CHUNK_MIB LEASE_MS\n";
    return 2;
  }
  const KvLayout layout = Layout();
  settings.pages = chunk_mib * (1 << 20) / static_cast<int>(layout.BandBytes({0, kLayers}));
  settings.lease_us = int64_t{lease_ms} * 1000;
  return role == "decode" ? RunDecode(settings) : RunPrefill(settings);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Run(argc, argv); }
