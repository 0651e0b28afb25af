#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton::sim {
namespace {

constexpr size_t kTraceLines = 400;

uint64_t HashText(const std::string& text) {
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a.
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

World::World(uint64_t seed, bool trace) : random_(seed), print_trace_(trace) {}

int World::AddNode(std::string name, Factory factory) {
  Node node;
  node.name = std::move(name);
  node.factory = std::move(factory);
  nodes_.push_back(std::move(node));
  return node_count() - 1;
}

void World::Start(int node) {
  Node& n = nodes_[node];
  BATON_CHECK(n.process == nullptr) << n.name << " runs already";
  n.incarnation = random_.Next() | 1;
  n.paused_until_us = 0;
  Trace(node, "START");
  n.process = n.factory(node, n.incarnation);
}

void World::Kill(int node) {
  Node& n = nodes_[node];
  if (n.process == nullptr) return;
  Trace(node, "KILL");
  n.process.reset();
  std::erase_if(wires_, [node](const auto& wire) {
    return wire.first.first == node || wire.first.second == node;
  });
  std::vector<uint64_t> broken;
  for (const auto& [id, call] : calls_) {
    if (call.client == node || call.server == node) broken.push_back(id);
  }
  for (const uint64_t id : broken) BreakCall(id);
}

void World::Exit(int node) {
  queue_.At(now_us(), [this, node, incarnation = nodes_[node].incarnation] {
    const Node& n = nodes_[node];
    if (n.process == nullptr || n.incarnation != incarnation || !violation_.empty()) return;
    Trace(node, "EXIT");
    on_exit_(node);
  });
}

void World::Pause(int node, int64_t duration_us) {
  Trace(node, absl::StrCat("PAUSE for ", duration_us / 1000, " ms"));
  nodes_[node].paused_until_us = now_us() + duration_us;
}

int64_t World::DrawDelay() {
  if (random_.Chance(faults_.spike)) return random_.Between(1000, 200'000);
  return random_.Between(20, faults_.delay_us_max);
}

void World::RunOn(int node, uint64_t incarnation, const char* label, std::function<void()> run) {
  Node& n = nodes_[node];
  if (n.process == nullptr || n.incarnation != incarnation || !violation_.empty()) return;
  if (n.paused_until_us > now_us()) {
    queue_.At(n.paused_until_us, [this, node, incarnation, label, run = std::move(run)]() mutable {
      RunOn(node, incarnation, label, std::move(run));
    });
    return;
  }
  Trace(node, label);
  run();
  if (nodes_[node].process == nullptr) return;
  if (const absl::Status status = nodes_[node].process->CheckInvariants(); !status.ok()) {
    Violate(absl::StrCat(nodes_[node].name, ": ", status.message()));
  }
}

void World::After(int node, int64_t delay_us, const char* label, std::function<void()> run) {
  queue_.At(now_us() + delay_us,
            [this, node, incarnation = nodes_[node].incarnation, label,
             run = std::move(run)]() mutable { RunOn(node, incarnation, label, std::move(run)); });
}

void World::Deliver(int64_t& order_us, int to, const char* label, std::function<void()> run) {
  order_us = std::max(order_us, now_us() + DrawDelay());
  queue_.At(order_us,
            [this, to, incarnation = nodes_[to].incarnation, label,
             run = std::move(run)]() mutable { RunOn(to, incarnation, label, std::move(run)); });
}

uint64_t World::OpenCall(int client, int server) {
  if (!alive(server)) return 0;
  const uint64_t id = next_call_++;
  Call call;
  call.client = client;
  call.client_incarnation = nodes_[client].incarnation;
  call.server = server;
  call.server_incarnation = nodes_[server].incarnation;
  calls_[id] = call;
  return id;
}

void World::BreakCall(uint64_t id) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = it->second;
  calls_.erase(it);
  // After what was sent before on this call, as on any stream.
  const auto tell = [this, id](int node, uint64_t incarnation, int64_t order_us) {
    const int64_t at_us = std::max(order_us, now_us() + DrawDelay());
    queue_.At(at_us, [this, node, incarnation, id] {
      RunOn(node, incarnation, "call broken",
            [this, node, id] { nodes_[node].process->CallBroken(id); });
    });
  };
  tell(call.client, call.client_incarnation, call.to_client_us);
  tell(call.server, call.server_incarnation, call.to_server_us);
}

int64_t World::PassWire(int from, int to, size_t bytes, const char* label) {
  Wire& wire = wires_[{from, to}];
  wire.busy_until_us = std::max(wire.busy_until_us, now_us());
  if (bytes == 0) return wire.busy_until_us;
  wire.bytes += bytes;
  if (wire.bytes > connection_limit_bytes_) {
    Violate(absl::StrCat(nodes_[from].name, " has ", wire.bytes, " bytes under way with '", label,
                         "', more than the connection's queue holds"));
  }
  if (faults_.bytes_per_ms > 0) {
    wire.busy_until_us += static_cast<int64_t>(bytes) * 1000 / faults_.bytes_per_ms;
  }
  return wire.busy_until_us;
}

void World::TransferData(int from, int to, uint64_t to_incarnation, size_t bytes, const char* label,
                         std::function<void()> read, std::function<void(bool)> place,
                         std::function<void(absl::Status)> sent) {
  // Bytes leave the sender's memory only at the end of the send: a page that is reused before
  // `sent` shows as foreign content at the receiver.
  const int64_t send_us = PassWire(from, to, bytes, label) - now_us() + DrawDelay();
  const bool fails = random_.Chance(faults_.data_fail);
  const bool lost = random_.Chance(faults_.data_lost);
  const bool slow = random_.Chance(faults_.data_slow);
  const bool corrupt = random_.Chance(faults_.data_corrupt);
  const int64_t late_us = slow ? random_.Between(1000, 2'000'000) : random_.Between(0, 200);
  const bool arrives = !lost && (!fails || random_.Chance(0.5));
  After(from, send_us, label,
        [this, from, to, to_incarnation, bytes, label, fails, corrupt, late_us, arrives,
         read = std::move(read), place = std::move(place), sent = std::move(sent)] {
          if (const auto wire = wires_.find({from, to}); wire != wires_.end()) {
            wire->second.bytes -= std::min(bytes, wire->second.bytes);
          }
          read();
          const bool reachable = alive(to) && nodes_[to].incarnation == to_incarnation;
          if (arrives && reachable) {
            queue_.At(now_us() + late_us, [this, to, to_incarnation, label, corrupt, place] {
              RunOn(to, to_incarnation, label, [place, corrupt] { place(corrupt); });
            });
          }
          sent(fails || !reachable ? absl::UnavailableError("peer does not answer")
                                   : absl::OkStatus());
        });
}

void World::Violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  Trace(-1, absl::StrCat("VIOLATION ", what));
}

void World::Trace(int node, const std::string& line) {
  queue_.Record(HashText(line) + static_cast<uint64_t>(node));
  if (!print_trace_) return;
  trace_.push_back(absl::StrFormat("%11.6f s  %-12s %s", static_cast<double>(now_us()) / 1e6,
                                   node < 0 ? "checker" : nodes_[node].name, line));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

}  // namespace baton::sim
