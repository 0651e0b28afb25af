#include "common/collective/testing/in_process_group.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"

namespace baton {

using collective::CollectiveCore;

using Message = std::vector<std::byte>;

struct InProcessGroup::Network {
  struct Link {
    int64_t latency_us = 0;
    int64_t last_arrival_us = 0;  // Nothing overtakes.
    size_t unread = 0;
  };

  Network(const Options& network_options, Schedule network_schedule, size_t size)
      : options(network_options), schedule(std::move(network_schedule)) {
    links.assign(size, std::vector<Link>(size, Link{.latency_us = options.latency_us}));
  }

  // Runs `arrive` when what leaves now has crossed the link.
  void Cross(int from, int to, int64_t extra_us, std::function<void()> arrive) {
    Link& link = links[from][to];
    const int64_t at_us = schedule.now_us() + link.latency_us + extra_us;
    link.last_arrival_us = std::max(link.last_arrival_us, at_us);
    schedule.at(link.last_arrival_us, std::move(arrive));
  }

  const Options options;
  const Schedule schedule;
  std::vector<std::vector<Link>> links;  // [from][to]
  std::vector<std::unique_ptr<Rank>> ranks;
};

class InProcessGroup::Rank final : public Communicator {
 public:
  Rank(const GroupDescription& group, const std::shared_ptr<Network>& network)
      : core_(group, network->options.core),
        network_(network),
        kept_(group.members.size()),
        room_(core_.frame_bytes_max()) {}

  void Submit(const Collective& collective, Done done) override {
    BATON_CHECK(running_) << "a process that does not run has submitted";
    core_.Submit(collective, std::move(done), now_us());
    Pump();
  }
  void Abort(absl::Status why) override {
    core_.Abort(std::move(why));
    Pump();
  }
  const GroupDescription& group() const override { return core_.group(); }
  const CollectiveCore& core() const { return core_; }

  void Arrive(int from, Message message) {
    if (dead_) return;
    inbox_.push_back(
        [this, from, message = std::move(message)]() mutable { Read(from, std::move(message)); });
    Pump();
  }
  void HearOfDeath(int of) {
    if (dead_) return;
    inbox_.push_back([this, of] {
      core_.Lost(of, absl::UnavailableError("connection closed by peer"), now_us());
    });
    Pump();
  }
  void Tick() {
    if (!running_) return;  // Continue will.
    core_.Tick(now_us());
    Pump();
  }

  void Leave() {
    core_.Leave();
    Pump();
  }
  void Kill() {
    running_ = false;
    dead_ = true;
  }
  void Stop() { running_ = false; }
  void Continue() {
    BATON_CHECK(!dead_);
    running_ = true;
    core_.Tick(now_us());
    Pump();
  }
  // Reads, sends and completes until nothing moves.
  void Pump();

 private:
  int64_t now_us() const { return network_.lock()->schedule.now_us(); }
  void Read(int from, Message message);
  bool SendSome();
  void ForgetRead();
  void WatchDeadline();

  CollectiveCore core_;
  const std::weak_ptr<Network> network_;
  std::vector<std::deque<Message>> kept_;  // By sender: what the core reads.
  Message room_;
  std::deque<std::function<void()>> inbox_;
  bool running_ = true;
  bool dead_ = false;
  bool pumping_ = false;
  int64_t watched_us_ = kNeverUs;
};

void InProcessGroup::Rank::Pump() {
  if (pumping_) return;  // A completion submits: the loop below goes on with it.
  pumping_ = true;
  for (bool moved = true; moved && running_;) {
    moved = false;
    if (!inbox_.empty()) {
      const std::function<void()> event = std::move(inbox_.front());
      inbox_.pop_front();
      event();
      moved = true;
    }
    moved |= SendSome();
    ForgetRead();
    for (CollectiveCore::Completion& completion : core_.TakeCompletions()) {
      completion.done(std::move(completion.status));
      moved = true;
    }
  }
  pumping_ = false;
  WatchDeadline();
}

void InProcessGroup::Rank::Read(int from, Message message) {
  const std::shared_ptr<Network> network = network_.lock();
  const int self = core_.group().rank;
  // Moving a vector leaves its bytes where they are.
  kept_[from].push_back(std::move(message));
  if (core_.Offer(from, kept_[from].back(), now_us())) return;
  kept_[from].pop_back();
  --network->links[from][self].unread;
}

void InProcessGroup::Rank::ForgetRead() {
  const std::shared_ptr<Network> network = network_.lock();
  const int self = core_.group().rank;
  for (int from = 0; from < core_.group().size(); ++from) {
    for (size_t count = core_.TakeReleased(from); count > 0; --count) {
      kept_[from].pop_front();
      --network->links[from][self].unread;
    }
  }
}

bool InProcessGroup::Rank::SendSome() {
  const std::shared_ptr<Network> network = network_.lock();
  const int self = core_.group().rank;
  bool moved = false;
  for (int to = 0; to < core_.group().size(); ++to) {
    const size_t bytes = core_.NextFrame(to, room_, now_us());
    if (bytes == 0) continue;
    moved = true;
    Network::Link& link = network->links[self][to];
    ++link.unread;
    const collective::CoreOptions& options = network->options.core;
    BATON_CHECK(link.unread <= options.window_frames + collective::kControlFramesMax)
        << "rank " << self << " sends " << to << " more than it has room for";
    Message message(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes));
    network->Cross(self, to, 0, [net = network_, self, to, message = std::move(message)]() mutable {
      if (const auto alive = net.lock()) alive->ranks[to]->Arrive(self, std::move(message));
    });
  }
  return moved;
}

void InProcessGroup::Rank::WatchDeadline() {
  const int64_t deadline_us = core_.deadline_us();
  if (deadline_us == std::exchange(watched_us_, deadline_us) || deadline_us == kNeverUs) return;
  network_.lock()->schedule.at(deadline_us, [net = network_, self = core_.group().rank] {
    if (const auto alive = net.lock()) alive->ranks[self]->Tick();
  });
}

InProcessGroup::InProcessGroup(const std::vector<GroupDescription>& ranks, const Options& options,
                               Schedule schedule)
    : network_(std::make_shared<Network>(options, std::move(schedule), ranks.size())) {
  for (const GroupDescription& group : ranks) {
    network_->ranks.push_back(std::make_unique<Rank>(group, network_));
  }
  for (const std::unique_ptr<Rank>& rank : network_->ranks) rank->Pump();
}

InProcessGroup::~InProcessGroup() = default;

Communicator& InProcessGroup::rank(int rank) { return *network_->ranks[rank]; }
bool InProcessGroup::formed(int rank) const { return network_->ranks[rank]->core().formed(); }
const absl::Status& InProcessGroup::ended(int rank) const {
  return network_->ranks[rank]->core().ended();
}

void InProcessGroup::Leave(int rank) { network_->ranks[rank]->Leave(); }

void InProcessGroup::Kill(int rank) {
  network_->ranks[rank]->Kill();
  for (int to = 0; to < static_cast<int>(network_->ranks.size()); ++to) {
    if (to == rank) continue;
    network_->Cross(rank, to, network_->options.loss_notice_us,
                    [net = std::weak_ptr<Network>(network_), rank, to] {
                      if (const auto alive = net.lock()) alive->ranks[to]->HearOfDeath(rank);
                    });
  }
}

void InProcessGroup::Stop(int rank) { network_->ranks[rank]->Stop(); }
void InProcessGroup::Continue(int rank) { network_->ranks[rank]->Continue(); }
void InProcessGroup::SetLatency(int from, int to, int64_t latency_us) {
  network_->links[from][to].latency_us = latency_us;
}

}  // namespace baton
