// The world of a simulated cluster: nodes that live, die and stand still, paths that delay, drop
// and break, one virtual clock, one source of chance. Everything that happens is recorded in the
// hash of the run and, on wish, in a readable trace.
#ifndef TESTS_SIM_WORLD_H_
#define TESTS_SIM_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/random.h"
#include "common/sim/event_queue.h"
#include "common/types/instance.h"
#include "tests/sim/touches.h"

namespace baton::sim {

// Probabilities and bounds of what goes wrong on the wire; drawn from the seed.
struct NetworkFaults {
  int64_t delay_us_max = 500;
  double spike = 0;          // A message takes up to 200 ms.
  double control_drop = 0;   // A message on a call is lost, and the call breaks.
  double compute_fail = 0;   // A step fails; a chunk, row, draw or prompt's tokens: a part of this.
  double loop_late = 0;      // A worker's busy loop sees its timer up to 1 s late.
  double call_late = 0;      // A call takes up to 1 s to connect.
  double plan_repeat = 0;    // A stage gets a plan twice (a shell's mistake, not gRPC's).
  double nonsense = 0;       // A message arrives as one that no correct peer sends.
  double data_fail = 0;      // A tensor message ends with an error at its sender.
  double data_lost = 0;      // It never arrives although its sender got OK.
  double data_slow = 0;      // It arrives up to 2 s after its sender got OK.
  double data_corrupt = 0;   // Its payload changes under way.
  double connect_fail = 0;   // An endpoint fails to open.
  double connect_slow = 0;   // A lookup is late; a rank's connection takes up to 2 s.
  double break_late = 0;     // One end of a broken call notices up to 4 s late.
  double endpoint_dies = 0;  // An open endpoint dies within seconds, though its peer lives.
  double endpoint_silent = 0;  // An endpoint looks open, but nothing arrives over it.
  double group_slow = 0;       // A rank takes up to 2 s to connect to its stage's others.
  double group_fails = 0;      // A rank cannot connect to them.
  double group_hangs = 0;      // A rank's attempt to connect never ends.
  double step_late = 0;        // One rank begins a step up to 800 ms after the others.
  double step_hangs = 0;       // One rank begins a step after the others' timeout.
  double step_ends_late = 0;   // A decode rank ends a step up to 300 ms after the others.
  double order_garbled = 0;    // An order to a decode rank arrives invalid.
  // Bandwidth of a tensor connection in bytes per millisecond; 0: no limit.
  int64_t bytes_per_ms = 0;
};

class SimGroup;
class SimLink;
class SimWiring;
class WorkerMembership;

// One life of a process. Methods run on the node's own time line.
class Process {
 public:
  virtual ~Process() = default;
  // A call that this process holds an end of has broken (peer died, or the network did).
  virtual void CallBroken(uint64_t call) = 0;
  // `peer` has closed the endpoint to this process that it opened at `opened_us`.
  // Set for workers; nullptr for routers.
  virtual WorkerMembership* worker() { return nullptr; }
  virtual SimGroup* ranks() { return nullptr; }
  // The ends of a chain's links: of member 0, and of another one.
  virtual SimWiring* wiring() { return nullptr; }
  virtual SimLink* link() { return nullptr; }
  // The invariants of all its cores.
  virtual absl::Status CheckInvariants() const = 0;
  virtual bool AtRest(std::string& why_not) const = 0;
};

class World {
 public:
  explicit World(uint64_t seed, bool trace);

  using Factory = std::function<std::unique_ptr<Process>(int node, uint64_t incarnation)>;
  // A node that isn't started yet.
  int AddNode(std::string name, Factory factory);

  void Start(int node);
  void Kill(int node);
  // The process exits by itself after its current event; then on_exit is called.
  void Exit(int node);
  void SetExitHandler(std::function<void(int node)> on_exit) { on_exit_ = std::move(on_exit); }
  void Pause(int node, int64_t duration_us);  // As SIGSTOP, then SIGCONT.
  // Nothing of `from` reaches `to` for so long, the other way everything. What is sent meanwhile
  // arrives afterwards, as TCP repeats it, unless the connection is given up: by the pings of a
  // call's server, and by the tensor transport's keepalive.
  void Partition(int from, int to, int64_t duration_us);
  // The node's event loop takes no more of what others send at will, for so long: calls break.
  void FillMailbox(int node, int64_t duration_us);
  // Wall clocks of processes differ by up to this, from one life to the next too.
  void SetClockSkew(int64_t skew_us) { clock_skew_us_ = skew_us; }
  void StepClock(int node, int64_t by_us) { nodes_[node].wall_clock_ahead_us += by_us; }
  int64_t wall_clock_us(int node) const;
  bool alive(int node) const { return nodes_[node].process != nullptr; }
  bool paused(int node) const { return nodes_[node].paused_until_us > now_us(); }
  Process* process(int node) const { return nodes_[node].process.get(); }
  uint64_t incarnation(int node) const { return nodes_[node].incarnation; }
  const std::string& name(int node) const { return nodes_[node].name; }
  // What the node's processes have written, which outlives them.
  std::string& disk(int node) { return nodes_[node].disk; }
  int node_count() const { return static_cast<int>(nodes_.size()); }

  // Runs `run` on the node after `delay_us`, unless that life of it is over by then.
  void After(int node, int64_t delay_us, const char* label, std::function<void()> run);

  // One-way message: a call of its own, so in order with nothing but its like on the same (from,
  // to) path; lost if the receiver is dead.
  template <typename Receiver>
  void Send(int from, int to, const char* label, std::function<void(Receiver&)> run) {
    Deliver(path_order_us_[{from, to}], from, to, label,
            [this, to, run = std::move(run)] { run(static_cast<Receiver&>(*nodes_[to].process)); });
  }

  // A call in the sense of gRPC: its messages both ways arrive in order, and its breaking after
  // them at both ends. Calls overtake one another. 0 if the server is dead: the caller must treat
  // it as broken at once.
  uint64_t OpenCall(int client, int server);
  void CloseCall(uint64_t call) { calls_.erase(call); }
  bool CallOpen(uint64_t call) const { return calls_.contains(call); }
  // A full mailbox refuses it, and the call breaks.
  template <typename Receiver>
  void SendOnCall(uint64_t call, int from, const char* label, std::function<void(Receiver&)> run) {
    PassOnCall(call, from, label, std::move(run), /*refusable=*/true);
  }
  // What the receiver itself began: its mailbox has room for that (EventLoop::PostCompletion).
  template <typename Receiver>
  void AnswerOnCall(uint64_t call, int from, const char* label,
                    std::function<void(Receiver&)> run) {
    PassOnCall(call, from, label, std::move(run), /*refusable=*/false);
  }
  // Sends on a connection between neighbours that carries sums: quick, and seldom late or lost.
  template <typename Receiver>
  void SendFrame(uint64_t call, int from, const char* label, std::function<void(Receiver&)> run) {
    const auto it = calls_.find(call);
    if (it == calls_.end()) return;
    if (random_.Chance(faults_.control_drop / kFramesRarely)) return BreakCall(call);
    const bool to_server = it->second.client == from;
    const int to = to_server ? it->second.server : it->second.client;
    const bool late = random_.Chance(faults_.spike / kFramesRarely);
    const int64_t delay_us = late ? random_.Between(1000, kLatestFrameUs) : random_.Between(5, 30);
    DeliverIn(
        delay_us, to_server ? it->second.to_server_us : it->second.to_client_us, from, to, label,
        [this, to, run = std::move(run)] { run(static_cast<Receiver&>(*nodes_[to].process)); });
  }
  void BreakCall(uint64_t call);

  // A tensor message. One without bytes is control: it waits for what its connection has been given
  // before, and nothing else; data takes its time on the wire, one message after the other, and may
  // arrive in another order. A sender of more than SetConnectionLimit allows breaks a promise:
  // the real queue is bounded too, and would fail the message. `read` runs when the bytes leave the
  // sender's memory, just before `sent` (so a page that is reused before `sent` shows), `place` at
  // the receiver if it arrives, `sent` at the sender exactly once. A slow message arrives long
  // after `sent` said OK.
  template <typename Receiver>
  void SendData(int from, int to, uint64_t to_incarnation, size_t bytes, const char* label,
                std::function<void()> read, std::function<void(Receiver&, bool corrupt)> place,
                std::function<void(absl::Status)> sent) {
    TransferData(
        from, to, to_incarnation, bytes, label, std::move(read),
        [this, to, place = std::move(place)](bool corrupt) {
          place(static_cast<Receiver&>(*nodes_[to].process), corrupt);
        },
        std::move(sent));
  }

  // Data bytes that may be under way on one connection.
  void SetConnectionLimit(size_t bytes) { connection_limit_bytes_ = bytes; }

  // When a slow tensor message arrives at the latest.
  void SetLatestData(int64_t latest_us) { latest_data_us_ = latest_us; }

  // True if nothing but bandwidth stands in anybody's way: then no lease may be lost.
  bool calm() const { return calm_; }
  void SetCalm(bool calm) { calm_ = calm; }

  // What the routers' name leads to, for everybody at once; or who announces itself.
  struct Dns {
    bool announced = false;  // It leads nowhere, and those that are listed announce themselves.
    std::set<int> listed;    // Nodes.
    std::set<int> aliased;   // Those of them that have a second address.
    bool fails = false;
    bool strangers = false;  // More addresses without a process than are followed.
    int64_t slowest_us = 2000;
  };
  Dns& dns() { return dns_; }

  // The node to and from which no endpoint ever stands; -1: there is none.
  int lonely() const { return lonely_; }
  void SetLonely(int node) { lonely_ = node; }

  int64_t now_us() const { return queue_.now_us(); }
  Random& random() { return random_; }
  EventQueue& queue() { return queue_; }
  NetworkFaults& faults() { return faults_; }
  // How late the loop of a worker sees the timer that it sets now.
  int64_t DrawLoopLateness();
  // Whether a fault of this kind happens now.
  bool Strikes(double NetworkFaults::*chance);

  // Records a broken promise; the run ends with it.
  void Violate(const std::string& what);
  const std::string& violation() const { return violation_; }

  void Trace(int node, const std::string& line);
  bool tracing() const { return print_trace_; }
  // Says so in the trace, and again when a broken promise names one of the subjects (touches.h).
  void Touch(int node, const std::vector<std::string>& subjects, const std::string& what);
  const std::deque<std::string>& trace() const { return trace_; }

 private:
  struct Node {
    std::string name;
    Factory factory;
    std::unique_ptr<Process> process;
    uint64_t incarnation = 0;
    int64_t paused_until_us = 0;
    int64_t mailbox_full_until_us = 0;
    int64_t wall_clock_ahead_us = 0;  // Relative to the world's clock.
    std::string disk;
  };
  struct Call {
    int client = -1;
    uint64_t client_incarnation = 0;
    int server = -1;
    uint64_t server_incarnation = 0;
    int64_t to_client_us = 0;  // When its last message each way arrives.
    int64_t to_server_us = 0;
  };

  std::string TraceLine(int node, const std::string& line) const;
  int64_t DrawDelay();
  // Not before what `order_us` says, which it moves on.
  void Deliver(int64_t& order_us, int from, int to, const char* label, std::function<void()> run) {
    DeliverIn(DrawDelay(), order_us, from, to, label, std::move(run));
  }
  void DeliverIn(int64_t delay_us, int64_t& order_us, int from, int to, const char* label,
                 std::function<void()> run);
  // When what leaves `from` now arrives at `to`.
  int64_t ArrivalUs(int from, int to, int64_t delay_us) const;
  template <typename Receiver>
  void PassOnCall(uint64_t call, int from, const char* label, std::function<void(Receiver&)> run,
                  bool refusable) {
    const auto it = calls_.find(call);
    if (it == calls_.end()) return;
    const bool to_server = it->second.client == from;
    const int to = to_server ? it->second.server : it->second.client;
    if (Strikes(&NetworkFaults::control_drop)) {
      Trace(from, std::string(label) + " DROPPED");
      BreakCall(call);
      return;
    }
    Deliver(to_server ? it->second.to_server_us : it->second.to_client_us, from, to, label,
            [this, call, to, refusable, run = std::move(run)] {
              if (refusable && MailboxFull(to)) return RefuseForMailbox(call, to);
              run(static_cast<Receiver&>(*nodes_[to].process));
            });
  }
  bool MailboxFull(int node) const { return nodes_[node].mailbox_full_until_us > now_us(); }
  void RefuseForMailbox(uint64_t call, int node);
  // Tells one end of a call that is gone.
  void TellBroken(uint64_t id, const Call& call, bool server, int64_t at_us);
  void RunOn(int node, uint64_t incarnation, const char* label, std::function<void()> run,
             bool waited = false);
  // When a message that is given to the connection now has left it.
  int64_t PassWire(int from, int to, uint64_t to_incarnation, size_t bytes, const char* label);
  void TransferData(int from, int to, uint64_t to_incarnation, size_t bytes, const char* label,
                    std::function<void()> read, std::function<void(bool)> place,
                    std::function<void(absl::Status)> sent);

  static constexpr double kFramesRarely = 50;
  static constexpr int64_t kLatestFrameUs = 200'000;

  EventQueue queue_;
  Random random_;
  NetworkFaults faults_;
  Dns dns_;
  std::vector<Node> nodes_;
  std::map<uint64_t, Call> calls_;
  uint64_t next_call_ = 1;
  int64_t clock_skew_us_ = 0;
  std::map<std::pair<int, int>, int64_t> parted_until_us_;
  std::map<std::pair<int, int>, int64_t> path_order_us_;  // Order of one-way messages.
  struct Wire {
    int64_t busy_until_us = 0;
    size_t bytes = 0;  // Data under way.
  };
  // Tensor connections, from a node to a node's life. One to a dead process fails its
  // messages in its own time, beside the connection to the next process.
  std::map<std::tuple<int, int, uint64_t>, Wire> wires_;
  size_t connection_limit_bytes_ = 0;
  int64_t latest_data_us_ = 0;
  bool calm_ = false;
  int lonely_ = -1;
  std::function<void(int)> on_exit_;
  std::string violation_;
  bool print_trace_;
  Touches touches_;
  std::deque<std::string> trace_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORLD_H_
