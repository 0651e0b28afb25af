#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "tests/sim/coverage.h"
#include "tests/sim/timings.h"

namespace baton::sim {
namespace {

constexpr size_t kTraceLines = 400;
constexpr int64_t kWallClockUs = 1'000'000'000'000;  // When a run begins.
// A server pings a silent connection (common/rpc/server.h), the tensor transport too
// (UCX_KEEPALIVE_INTERVAL): after so long without an answer the connection is given up.
constexpr int64_t kServerGivesUpUs = 5'000'000;
constexpr int64_t kServerGivesUpLatestUs = 10'000'000;
constexpr int64_t kTensorsGiveUpUs = 3'000'000;
constexpr int64_t kLatestLoopUs = 1'000'000;
constexpr int64_t kSlowestCallUs = 1'000'000;

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
  n.mailbox_full_until_us = 0;
  n.wall_clock_ahead_us =
      clock_skew_us_ == 0 ? 0 : random_.Between(-clock_skew_us_, clock_skew_us_);
  Trace(node, "START");
  n.process = n.factory(node, n.incarnation);
}

void World::Kill(int node) {
  Node& n = nodes_[node];
  if (n.process == nullptr) return;
  Trace(node, "KILL");
  n.process.reset();
  std::erase_if(wires_, [node](const auto& wire) {
    return std::get<0>(wire.first) == node || std::get<1>(wire.first) == node;
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

int64_t World::wall_clock_us(int node) const {
  return kWallClockUs + now_us() + nodes_[node].wall_clock_ahead_us;
}

void World::FillMailbox(int node, int64_t duration_us) {
  Trace(node, absl::StrCat("MAILBOX FULL for ", duration_us / 1000, " ms"));
  nodes_[node].mailbox_full_until_us = now_us() + duration_us;
}

void World::RefuseForMailbox(uint64_t call, int node) {
  Trace(node, "REFUSED, mailbox full");
  BreakCall(call);
}

void World::Partition(int from, int to, int64_t duration_us) {
  const int64_t until_us = now_us() + duration_us;
  Trace(from, absl::StrCat("PARTED from ", nodes_[to].name, " for ", duration_us / 1000, " ms"));
  parted_until_us_[{from, to}] = until_us;
  // Servers' pings fail whichever way is parted; the client is told when it can be.
  const int64_t given_up_us = now_us() + random_.Between(kServerGivesUpUs, kServerGivesUpLatestUs);
  if (given_up_us >= until_us) return;
  queue_.At(given_up_us, [this, from, to, until_us] {
    std::vector<uint64_t> broken;
    for (const auto& [id, call] : calls_) {
      const bool theirs =
          (call.client == from && call.server == to) || (call.client == to && call.server == from);
      if (theirs) broken.push_back(id);
    }
    for (const uint64_t id : broken) {
      const Call call = calls_.at(id);
      calls_.erase(id);
      TellBroken(id, call, /*server=*/true, now_us());
      TellBroken(id, call, /*server=*/false, until_us);
    }
  });
}

int64_t World::ArrivalUs(int from, int to, int64_t delay_us) const {
  const auto parted = parted_until_us_.find({from, to});
  const int64_t leaves_us = parted == parted_until_us_.end() ? 0 : parted->second;
  return std::max(now_us(), leaves_us) + delay_us;
}

bool World::Strikes(double NetworkFaults::*chance) {
  if (!random_.Chance(faults_.*chance)) return false;
  CountNetworkFault(chance);
  return true;
}

int64_t World::DrawLoopLateness() {
  return Strikes(&NetworkFaults::loop_late) ? random_.Between(1000, kLatestLoopUs) : 0;
}

int64_t World::DrawDelay() {
  if (Strikes(&NetworkFaults::spike)) return random_.Between(1000, kLongestSpikeUs);
  return random_.Between(20, faults_.delay_us_max);
}

// `waited`: it has come before, to a process that stood still.
void World::RunOn(int node, uint64_t incarnation, const char* label, std::function<void()> run,
                  bool waited) {
  Node& n = nodes_[node];
  if (n.process == nullptr || n.incarnation != incarnation || !violation_.empty()) return;
  // What comes at the very end of a pause goes behind what has waited, or it would overtake it.
  if (n.paused_until_us > now_us() || (!waited && n.paused_until_us == now_us())) {
    queue_.At(n.paused_until_us, [this, node, incarnation, label, run = std::move(run)]() mutable {
      RunOn(node, incarnation, label, std::move(run), /*waited=*/true);
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

void World::DeliverIn(int64_t delay_us, int64_t& order_us, int from, int to, const char* label,
                      std::function<void()> run) {
  order_us = std::max(order_us, ArrivalUs(from, to, delay_us));
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
  if (Strikes(&NetworkFaults::call_late)) {
    call.to_server_us = now_us() + random_.Between(1000, kSlowestCallUs);
  }
  calls_[id] = call;
  return id;
}

void World::BreakCall(uint64_t id) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = it->second;
  calls_.erase(it);
  // After what was sent before on this call, as on any stream. One end may notice late: it gets no
  // sign when a machine or what lies between is gone.
  const bool late = Strikes(&NetworkFaults::break_late);
  const int64_t late_us = late ? random_.Between(100'000, kLatestBreakUs) : 0;
  const bool late_server = late && random_.Chance(0.5);
  const int64_t client_us = now_us() + DrawDelay() + (late_server ? 0 : late_us);
  const int64_t server_us = now_us() + DrawDelay() + (late_server ? late_us : 0);
  TellBroken(id, call, /*server=*/false, std::max(call.to_client_us, client_us));
  TellBroken(id, call, /*server=*/true, std::max(call.to_server_us, server_us));
}

void World::TellBroken(uint64_t id, const Call& call, bool server, int64_t at_us) {
  const int node = server ? call.server : call.client;
  const uint64_t incarnation = server ? call.server_incarnation : call.client_incarnation;
  queue_.At(at_us, [this, node, incarnation, id] {
    RunOn(node, incarnation, "call broken",
          [this, node, id] { nodes_[node].process->CallBroken(id); });
  });
}

int64_t World::PassWire(int from, int to, uint64_t to_incarnation, size_t bytes,
                        const char* label) {
  Wire& wire = wires_[{from, to, to_incarnation}];
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
  const int64_t send_us = PassWire(from, to, to_incarnation, bytes, label) - now_us() + DrawDelay();
  const bool fails = Strikes(&NetworkFaults::data_fail);
  const bool lost = Strikes(&NetworkFaults::data_lost);
  const bool slow = Strikes(&NetworkFaults::data_slow);
  const bool corrupt = Strikes(&NetworkFaults::data_corrupt);
  const int64_t late_us = slow ? random_.Between(1000, latest_data_us_) : random_.Between(0, 200);
  const auto parted = parted_until_us_.find({from, to});
  const bool given_up = parted != parted_until_us_.end() &&
                        parted->second > now_us() + kTensorsGiveUpUs && random_.Chance(0.5);
  const bool arrives = !lost && !given_up && (!fails || random_.Chance(0.5));
  After(from, send_us, label,
        [this, from, to, to_incarnation, bytes, label, fails, corrupt, late_us, arrives, given_up,
         read = std::move(read), place = std::move(place), sent = std::move(sent)] {
          if (const auto wire = wires_.find({from, to, to_incarnation}); wire != wires_.end()) {
            wire->second.bytes -= std::min(bytes, wire->second.bytes);
          }
          read();
          const bool reachable = alive(to) && nodes_[to].incarnation == to_incarnation;
          if (arrives && reachable) {
            queue_.At(ArrivalUs(from, to, late_us),
                      [this, to, to_incarnation, label, corrupt, place] {
                        RunOn(to, to_incarnation, label, [place, corrupt] { place(corrupt); });
                      });
          }
          sent(fails || given_up || !reachable ? absl::UnavailableError("peer does not answer")
                                               : absl::OkStatus());
        });
}

void World::Violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  queue_.Record(1);  // Not its text: in which order a status shows what it carries differs by run.
  if (print_trace_) trace_.push_back(TraceLine(-1, absl::StrCat("VIOLATION ", what)));
  if (!print_trace_) return;
  const std::vector<std::string> about = touches_.About(what);
  if (!about.empty()) trace_.push_back("What touched it last:");
  trace_.insert(trace_.end(), about.begin(), about.end());
}

std::string World::TraceLine(int node, const std::string& line) const {
  return absl::StrFormat("%11.6f s  %-12s %s", static_cast<double>(now_us()) / 1e6,
                         node < 0 ? "checker" : nodes_[node].name, line);
}

// Not a part of the hash: a run that is traced is the same run.
void World::Touch(int node, const std::vector<std::string>& subjects, const std::string& what) {
  if (!print_trace_) return;
  const std::string line = TraceLine(node, what);
  trace_.push_back(line);
  for (const std::string& subject : subjects) touches_.Add(subject, line);
}

void World::Trace(int node, const std::string& line) {
  queue_.Record(HashText(line) + static_cast<uint64_t>(node));
  if (!print_trace_) return;
  trace_.push_back(TraceLine(node, line));
  while (trace_.size() > kTraceLines) trace_.pop_front();
}

}  // namespace baton::sim
