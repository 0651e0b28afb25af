#include "common/collective/gloo/gloo_transport.h"

#include <gloo/context.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/sync.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Operation = std::shared_ptr<gloo::transport::UnboundBuffer>;

// A Gloo wait that times out breaks every connection of the group before the other ranks can be
// told why. So no wait has a timeout: the core's deadlines end waits by Close.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

// Turns Gloo's exceptions into statuses.
template <typename Body>
absl::Status Guard(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    // They look like "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer
    // [127.0.0.1]:4711".
    const std::string what = error.what();
    return absl::UnavailableError(what.substr(0, what.find('\n')));
  }
}

[[noreturn]] void ThrowNotOk(const absl::Status& status) {
  throw std::runtime_error(std::string(status.message()));
}

// Gloo's view of the store. It throws, since the interface has no other way to report errors.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<BootstrapStore> store, int64_t timeout_ms)
      : store_(std::move(store)), timeout_ms_(timeout_ms) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    const absl::Status status = store_->Set(key, {value.begin(), value.end()});
    if (!status.ok()) ThrowNotOk(status);
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_->Get(key, timeout_ms_);
    if (!value.ok()) ThrowNotOk(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  const std::shared_ptr<BootstrapStore> store_;
  const int64_t timeout_ms_;
};

enum class Direction : uint8_t { kSend, kReceive };

// Operations that were started and that a thread waits for, oldest first, with one peer in one
// direction.
class Started {
 public:
  explicit Started(Direction direction) : direction_(direction) {}

  void Push(Operation operation) {
    MutexLock lock(&mutex_);
    operations_.push_back(std::move(operation));
  }

  // Waits for the oldest operation.
  absl::Status Await() {
    Operation operation;
    {
      MutexLock lock(&mutex_);
      if (closed_) return absl::CancelledError("closed");
      BATON_CHECK(!operations_.empty()) << "nothing to wait for";
      operation = operations_.front();
    }
    bool done = false;
    absl::Status status = Guard([&] {
      done = direction_ == Direction::kSend ? operation->waitSend(kForever)
                                            : operation->waitRecv(kForever);
      return absl::OkStatus();
    });
    MutexLock lock(&mutex_);
    if (closed_) return absl::CancelledError("closed");
    if (!status.ok()) return status;
    BATON_CHECK(done) << "a wait was aborted before Close";
    operations_.pop_front();
    return absl::OkStatus();
  }

  // An abort ends only this wait or the next one: a posted operation stays posted until the pair is
  // gone.
  void Close() {
    MutexLock lock(&mutex_);
    if (std::exchange(closed_, true) || operations_.empty()) return;
    if (direction_ == Direction::kSend) {
      operations_.front()->abortWaitSend();
    } else {
      operations_.front()->abortWaitRecv();
    }
  }

  void Clear() {
    MutexLock lock(&mutex_);
    operations_.clear();
  }

 private:
  const Direction direction_;
  Mutex mutex_;
  std::deque<Operation> operations_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

class GlooTransport final : public MessageTransport {
 public:
  explicit GlooTransport(Context context) : context_(std::move(context)) {
    for (int peer = 0; peer < context_->size; ++peer) {
      sends_.emplace_back(Direction::kSend);
      receives_.emplace_back(Direction::kReceive);
    }
  }

  ~GlooTransport() override {
    Close();
    // The buffers are destroyed before the pairs that refer to them.
    for (Started& sends : sends_) sends.Clear();
    for (Started& receives : receives_) receives.Clear();
    (void)Guard([this] {
      context_.reset();
      return absl::OkStatus();
    });
  }

  absl::Status PostReceive(int peer, std::span<std::byte> room) override {
    return Guard([&] {
      // Gloo accepts a message that is shorter than the posted buffer.
      Operation receive = context_->createUnboundBuffer(room.data(), room.size());
      receive->recv(peer, kSlot);
      receives_[peer].Push(std::move(receive));
      return absl::OkStatus();
    });
  }
  absl::Status AwaitReceive(int peer) override { return receives_[peer].Await(); }

  absl::Status Send(int peer, std::span<const std::byte> message) override {
    return Guard([&] {
      // Gloo's interface has no const; a send only reads.
      Operation send =
          context_->createUnboundBuffer(const_cast<std::byte*>(message.data()), message.size());
      send->send(peer, kSlot);
      sends_[peer].Push(std::move(send));
      return absl::OkStatus();
    });
  }
  absl::Status AwaitSent(int peer) override { return sends_[peer].Await(); }

  void Close() override {
    for (Started& sends : sends_) sends.Close();
    for (Started& receives : receives_) receives.Close();
  }

 private:
  static constexpr uint64_t kSlot = 0;  // Messages of one slot keep their order.

  Context context_;
  std::deque<Started> sends_;  // By peer.
  std::deque<Started> receives_;
};

// While a sender holds a connection's lock, Gloo's thread, which this one starts, polls its socket.
// If both share a core, it takes the sender's place as soon as data arrives, and polls until its
// time slice ends. A batch thread waits for its turn instead: without it, all-reduces took two to
// three times as long (gloo_benchmark). Best effort.
void WakePatiently() {
  const sched_param none = {};
  (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

// Connecting blocks in ways that can't be ended (a pair waits for the other side five times its
// timeout), so it runs on a thread that is detached when the time is up.
class Attempt {
 public:
  static absl::StatusOr<Context> Run(const GlooOptions& options,
                                     const std::shared_ptr<BootstrapStore>& store) {
    const auto attempt = std::make_shared<Attempt>();
    std::thread([attempt, options, store] { attempt->Connect(options, store); }).detach();
    return attempt->Await(options, *store);
  }

 private:
  void Connect(const GlooOptions& options, const std::shared_ptr<BootstrapStore>& store) {
    WakePatiently();
    Context context;
    const absl::Status status = Guard([&] {
      GlooStore addresses(store, options.connect_timeout_ms);
      gloo::transport::tcp::attr listener;
      listener.hostname = options.host;
      std::shared_ptr<gloo::transport::Device> device =
          gloo::transport::tcp::CreateDevice(listener);
      context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
      context->setTimeout(milliseconds(std::max<int64_t>(options.connect_timeout_ms / 5, 1)));
      context->connectFullMesh(addresses, device);
      return absl::OkStatus();
    });
    MutexLock lock(&mutex_);
    finished_ = true;
    status_ = status;
    if (!abandoned_) context_ = std::move(context);
  }

  absl::StatusOr<Context> Await(const GlooOptions& options, BootstrapStore& store) {
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
    return std::move(context_);
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
  Context context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectGloo(
    const GlooOptions& options, const std::shared_ptr<BootstrapStore>& store) {
  // Gloo writes to sockets that a dead peer has closed. A handler that the process has set is kept.
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
  absl::StatusOr<Context> context = Attempt::Run(options, store);
  if (!context.ok()) return context.status();
  return std::make_unique<GlooTransport>(*std::move(context));
}

}  // namespace baton
