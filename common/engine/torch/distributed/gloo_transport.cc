#include "common/engine/torch/plugin_interface.h"

// What Debian's libtorch was built with; its headers hide Gloo's otherwise.
#define USE_C10D_GLOO
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/sync.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

using Work = c10::intrusive_ptr<c10d::Work>;
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// A Gloo wait that times out breaks every connection of the group before the other ranks can be
// told why. So no wait has a timeout: the core's deadlines end waits by Close.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

// Turns exceptions of c10d and Gloo into statuses.
template <typename Body>
absl::Status Guard(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    // Gloo's messages look like "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer
    // [127.0.0.1]:4711". c10d's own errors are followed by a stack trace.
    const std::string what = error.what();
    return absl::UnavailableError(what.substr(0, what.find('\n')));
  }
}

[[noreturn]] void ThrowNotOk(const absl::Status& status) {
  throw std::runtime_error(std::string(status.message()));
}

// c10d's view of the store. It throws, since the interface has no other way to report errors.
class C10dStore final : public c10d::Store {
 public:
  C10dStore(std::shared_ptr<BootstrapStore> store, int64_t timeout_ms)
      : store_(std::move(store)), timeout_ms_(timeout_ms) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    const absl::Status status = store_->Set(key, {value.begin(), value.end()});
    if (!status.ok()) ThrowNotOk(status);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_->Get(key, timeout_ms_);
    if (!value.ok()) ThrowNotOk(value.status());
    return {value->begin(), value->end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!store_->Has(key)) return false;
    }
    return true;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  // Part of libtorch 2's interface only, so it overrides nothing in 1.13.
  c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<C10dStore>(store_, timeout_ms_);
  }

  // Gloo does not use these.
  int64_t add(const std::string&, int64_t) override { Unsupported("add"); }
  bool deleteKey(const std::string&) override { Unsupported("deleteKey"); }
  int64_t getNumKeys() override { Unsupported("getNumKeys"); }

 private:
  [[noreturn]] static void Unsupported(const char* what) {
    ThrowNotOk(absl::UnimplementedError(absl::StrCat("the bootstrap store has no ", what)));
  }

  const std::shared_ptr<BootstrapStore> store_;
  const int64_t timeout_ms_;
};

// Operations that c10d has started and that a thread waits for, oldest first, with one peer in one
// direction.
class WorkQueue {
 public:
  void Push(Work work) {
    MutexLock lock(&mutex_);
    works_.push_back(std::move(work));
  }

  // Waits for the oldest operation.
  absl::Status Await() {
    Work work;
    {
      MutexLock lock(&mutex_);
      if (closed_) return absl::CancelledError("closed");
      BATON_CHECK(!works_.empty()) << "nothing to wait for";
      work = works_.front();
    }
    bool done = false;
    absl::Status status = Guard([&] {
      done = work->wait(kForever);
      return absl::OkStatus();
    });
    MutexLock lock(&mutex_);
    if (closed_) return absl::CancelledError("closed");
    if (!status.ok()) return status;
    BATON_CHECK(done) << "a wait was aborted before Close";
    works_.pop_front();
    return absl::OkStatus();
  }

  // An abort ends only this wait or the next one: a posted operation stays posted until the pair is
  // gone.
  void Close() {
    MutexLock lock(&mutex_);
    if (std::exchange(closed_, true) || works_.empty()) return;
    works_.front()->abort();
  }

  void Clear() {
    MutexLock lock(&mutex_);
    works_.clear();
  }

 private:
  Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

class GlooTransport final : public MessageTransport {
 public:
  explicit GlooTransport(ProcessGroup group)
      : group_(std::move(group)),
        sends_(static_cast<size_t>(group_->getSize())),
        receives_(static_cast<size_t>(group_->getSize())) {}

  ~GlooTransport() override {
    Close();
    // The buffers are destroyed before the pairs that refer to them.
    for (WorkQueue& sends : sends_) sends.Clear();
    for (WorkQueue& receives : receives_) receives.Clear();
    (void)Guard([this] {
      group_.reset();
      return absl::OkStatus();
    });
  }

  absl::Status PostReceive(int peer, std::span<std::byte> room) override {
    return Guard([&] {
      // Gloo accepts a message that is shorter than the posted buffer.
      std::vector<at::Tensor> tensor = {View(room.data(), room.size())};
      receives_[peer].Push(group_->recv(tensor, peer, kTag));
      return absl::OkStatus();
    });
  }
  absl::Status AwaitReceive(int peer) override { return receives_[peer].Await(); }

  absl::Status Send(int peer, std::span<const std::byte> message) override {
    return Guard([&] {
      // c10d's interface has no const; a send only reads.
      std::vector<at::Tensor> tensor = {
          View(const_cast<std::byte*>(message.data()), message.size())};
      sends_[peer].Push(group_->send(tensor, peer, kTag));
      return absl::OkStatus();
    });
  }
  absl::Status AwaitSent(int peer) override { return sends_[peer].Await(); }

  void Close() override {
    for (WorkQueue& sends : sends_) sends.Close();
    for (WorkQueue& receives : receives_) receives.Close();
  }

 private:
  static constexpr int kTag = 0;  // Messages of one tag keep their order.

  static at::Tensor View(std::byte* data, size_t bytes) {
    return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
  }

  ProcessGroup group_;
  std::deque<WorkQueue> sends_;  // By peer.
  std::deque<WorkQueue> receives_;
};

// While a sender holds a connection's lock, Gloo's thread, which this one starts, polls its socket.
// If both share a core, it takes the sender's place as soon as data arrives, and polls until its
// time slice ends. A batch thread waits for its turn instead: without it, all-reduces took two to
// three times as long (gloo_benchmark). Best effort.
void WakePatiently() {
  const sched_param none = {};
  (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

// The constructor of a process group blocks in ways that can't be ended (a pair waits for the other
// side five times its timeout), so it runs on a thread that is detached when the time is up.
class Attempt {
 public:
  static absl::StatusOr<ProcessGroup> Run(const GlooOptions& options,
                                          const std::shared_ptr<BootstrapStore>& store) {
    const auto attempt = std::make_shared<Attempt>();
    std::thread([attempt, options, store] { attempt->Connect(options, store); }).detach();
    return attempt->Await(options, *store);
  }

 private:
  void Connect(const GlooOptions& options, const std::shared_ptr<BootstrapStore>& store) {
    WakePatiently();
    ProcessGroup group;
    const absl::Status status = Guard([&] {
      auto gloo = c10d::ProcessGroupGloo::Options::create(
          milliseconds(std::max<int64_t>(options.connect_timeout_ms / 5, 1)));
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
      gloo->threads = 1;  // These run collectives, which are not used.
      group = c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<C10dStore>(store, options.connect_timeout_ms), options.rank,
          options.size, gloo);
      return absl::OkStatus();
    });
    MutexLock lock(&mutex_);
    finished_ = true;
    status_ = status;
    if (!abandoned_) group_ = std::move(group);
  }

  absl::StatusOr<ProcessGroup> Await(const GlooOptions& options, BootstrapStore& store) {
    if (!AwaitFor(milliseconds(options.connect_timeout_ms))) {
      store.End(absl::DeadlineExceededError(absl::StrCat(
          "rank ", options.rank, " of ", options.size, " was not connected to the others within ",
          options.connect_timeout_ms, " ms")));
      AwaitFor(std::chrono::seconds(1));
    }
    MutexLock lock(&mutex_);
    abandoned_ = true;
    if (!finished_) {
      return absl::DeadlineExceededError(absl::StrCat("Gloo did not connect rank ", options.rank,
                                                      " of ", options.size, " within ",
                                                      options.connect_timeout_ms, " ms"));
    }
    if (!status_.ok()) return status_;
    return std::move(group_);
  }

  bool AwaitFor(milliseconds limit) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(limit,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_; });
  }

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  ProcessGroup group_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectGloo(
    const GlooOptions& options, std::shared_ptr<BootstrapStore> store) {
  // Gloo writes to sockets that a dead peer has closed. A handler that the process has set is kept.
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
  absl::StatusOr<ProcessGroup> group = Attempt::Run(options, store);
  if (!group.ok()) return group.status();
  return std::make_unique<GlooTransport>(*std::move(group));
}

}  // namespace baton
