#include "common/transport/ucx_data_plane.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"
#include "common/base/sync.h"
#include "common/transport/peer_address.h"
#include "common/transport/ucx_support.h"

namespace baton {
namespace {

// Rounds of UCX progress before mailbox and timer get their turn.
constexpr int kProgressRounds = 64;
// The longest sleep. UCX has had transports that forget to raise the descriptor, so no sleep is
// unbounded, and it is short while we wait for UCX to finish something.
constexpr int kIdleSleepMs = 100;
constexpr int kPendingSleepMs = 10;
// Closing endpoints by force takes microseconds; a transport that never finishes must not keep the
// process from ending.
constexpr int64_t kTeardownUs = 3'000'000;
constexpr int64_t kMinPeriodUs = 1000;

absl::Status SystemError(const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("data plane: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Create(const DataPlaneOptions& options) {
  auto plane = std::make_unique<UcxDataPlane>(options);
  BATON_RETURN_IF_ERROR(plane->Start());
  return plane;
}

UcxDataPlane::UcxDataPlane(const DataPlaneOptions& options)
    : options_(options),
      mailbox_(options.mailbox_limit),
      ledger_(EntropySeed()),
      gate_(options.secret),
      receiver_(&counters_, &gate_),
      shared_{options_, &counters_, &ledger_, &gate_, {}, {}} {}

UcxDataPlane::~UcxDataPlane() { Shutdown(); }

absl::Status UcxDataPlane::Start() {
  if (mailbox_.event_fd() < 0) return SystemError("eventfd");
  PrepareUcxProcess();
  absl::Status status;
  Notification opened;
  MutexLock lock(&shutdown_mutex_);
  thread_ = std::thread([this, &status, &opened] {
    data_thread_ = std::this_thread::get_id();
    pthread_setname_np(pthread_self(), "baton-data");
    status = OpenUcx();
    const bool ok = status.ok();
    opened.Notify();
    if (ok) Run();
    CloseUcx();
  });
  opened.WaitForNotification();
  if (!status.ok()) thread_.join();
  return status;
}

absl::Status UcxDataPlane::OpenUcx() {
  ucp_config_t* config = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &config), "data plane: config"));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // No RMA: without it UCX has no handler that lets a peer write to an address of its choice.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  const ucs_status_t opened = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  BATON_RETURN_IF_ERROR(UcxStatus(opened, "data plane: ucp_init"));
  BATON_RETURN_IF_ERROR(OpenWorkers());
  return WatchDescriptors();
}

absl::Status UcxDataPlane::OpenWorkers() {
  for (UcxWorker* worker : {&incoming_, &outgoing_}) {
    BATON_RETURN_IF_ERROR(worker->Open(context_));
    BATON_RETURN_IF_ERROR(receiver_.Install(worker->handle()));
  }
  BATON_ASSIGN_OR_RETURN(const std::string incoming, incoming_.Address());
  BATON_ASSIGN_OR_RETURN(const std::string outgoing, outgoing_.Address());
  address_ = SealPeerAddress(incoming, options_.secret);
  greeting_address_ = SealPeerAddress(outgoing);
  return absl::OkStatus();
}

absl::Status UcxDataPlane::WatchDescriptors() {
  BATON_ASSIGN_OR_RETURN(const int incoming, incoming_.Descriptor());
  BATON_ASSIGN_OR_RETURN(const int outgoing, outgoing_.Descriptor());
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return SystemError("epoll_create1");
  for (int fd : {incoming, outgoing, mailbox_.event_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("epoll_ctl");
  }
  return absl::OkStatus();
}

void UcxDataPlane::Run() {
  while (!stopping_) {
    PumpPeers();  // First: a Disconnect in the mailbox comes after what was sent here.
    RunMailbox();
    bool idle = Progress();
    idle = !Pull() && idle;
    AnswerGreetings();
    AnswerGoodbyes();
    AnswerPings();
    LookAfterPeers();
    ReapPeers();
    Tick();
    idle = idle && shared_.ready.empty();
    if (idle && !stopping_ && ArmWorkers()) Sleep();
  }
  Teardown();
}

void UcxDataPlane::RunMailbox() {
  for (const std::function<void()>& task : mailbox_.Take()) task();
}

bool UcxDataPlane::Progress() {
  for (int round = 0; round < kProgressRounds; ++round) {
    if (!ProgressWorkers()) return true;
  }
  return false;
}

bool UcxDataPlane::ProgressWorkers() {
  const bool incoming = incoming_.Progress();
  return outgoing_.Progress() || incoming;
}

// False: something came in between; it must be progressed before the descriptors can be armed.
bool UcxDataPlane::ArmWorkers() { return incoming_.Arm() && outgoing_.Arm(); }

Peer* UcxDataPlane::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

void UcxDataPlane::PumpPeers() {
  for (PeerId id : std::exchange(shared_.ready, {})) {
    if (Peer* const peer = Find(id)) peer->Pump();
  }
}

void UcxDataPlane::Sleep() {
  bool waits_for_ucx = !closing_.empty() || receiver_.HasPending();
  for (const auto& [id, peer] : peers_) waits_for_ucx = waits_for_ucx || peer->HasInFlight();
  int64_t sleep_ms = waits_for_ucx ? kPendingSleepMs : kIdleSleepMs;
  if (next_tick_us_ != kNeverUs) {
    sleep_ms = std::clamp<int64_t>((next_tick_us_ - NowUs() + 999) / 1000, 0, sleep_ms);
  }
  epoll_event events[3];
  epoll_wait(epoll_fd_, events, 3, static_cast<int>(sleep_ms));
}

void UcxDataPlane::Tick() {
  if (next_tick_us_ == kNeverUs) return;
  const int64_t now_us = NowUs();
  if (now_us < next_tick_us_) return;
  next_tick_us_ = now_us + period_us_;
  // A copy: the tick may replace the timer.
  const std::function<void(int64_t)> on_tick = on_tick_;
  on_tick(now_us);
}

void UcxDataPlane::ReapPeers() {
  for (PeerId id : std::exchange(shared_.failed, {})) {
    Peer* const peer = Find(id);
    if (peer == nullptr || peer->closing()) continue;
    const absl::Status failure = peer->failure();
    if (peer->direction() == Peer::Direction::kReturn) {
      CloseReturn(id, failure);
      continue;
    }
    Fail(*peer, id, failure);
  }
  if (closing_.empty()) return;
  std::erase_if(closing_, [this, now_us = NowUs()](PeerId id) {
    const auto found = peers_.find(id);
    found->second->AdvanceClose(now_us);
    if (!found->second->Finished()) return false;
    peers_.erase(found);
    return true;
  });
}

bool UcxDataPlane::Post(std::function<void()> task) { return mailbox_.Push(task); }

bool UcxDataPlane::PostReserved(std::function<void()> task) {
  return mailbox_.PushControl(std::move(task));
}

bool UcxDataPlane::RunAndWait(const std::function<void()>& task) {
  if (OnDataThread()) {
    if (stopping_) return false;
    task();
    return true;
  }
  // The mailbox either runs what it took or has refused it, so the wait always ends.
  Notification done;
  if (!mailbox_.PushControl([&task, &done] {
        task();
        done.Notify();
      })) {
    return false;
  }
  done.WaitForNotification();
  return true;
}

absl::Status UcxDataPlane::Register(MessageKind kind, MessageHandler* handler) {
  absl::Status status = absl::UnavailableError("data plane: shut down");
  RunAndWait([&] { status = receiver_.Register(kind, handler); });
  return status;
}

void UcxDataPlane::Unregister(MessageKind kind) {
  RunAndWait([&] { receiver_.Unregister(kind); });
}

absl::StatusOr<PeerId> UcxDataPlane::Connect(std::string_view address) {
  absl::StatusOr<PeerId> peer = absl::UnavailableError("data plane: shut down");
  RunAndWait([&] { peer = ConnectNow(address, Peer::Direction::kOutbound); });
  return peer;
}

absl::StatusOr<PeerId> UcxDataPlane::ConnectNow(std::string_view address,
                                                Peer::Direction direction) {
  BATON_ASSIGN_OR_RETURN(const PeerAddress peer_address, OpenPeerAddress(address));
  const PeerId id = ++last_peer_;
  auto peer = std::make_unique<Peer>(id, direction, &shared_);
  const UcxWorker& worker = direction == Peer::Direction::kOutbound ? outgoing_ : incoming_;
  BATON_RETURN_IF_ERROR(peer->Open(worker.handle(), peer_address, greeting_address_));
  if (direction == Peer::Direction::kOutbound) {
    LOG(kInfo) << "data plane: peer " << id << " over " << peer->Lanes();
  }
  peers_.emplace(id, std::move(peer));
  return id;
}

void UcxDataPlane::Disconnect(PeerId peer) {
  // Always through the mailbox: within a callback of UCX an endpoint must not be closed. After
  // Shutdown there is nothing left to disconnect.
  (void)mailbox_.PushControl([this, peer] {
    Peer* const found = Find(peer);
    if (found == nullptr || found->closing()) return;
    found->Close(absl::CancelledError("data plane: disconnected"));
    closing_.push_back(peer);
  });
}

void UcxDataPlane::Send(PeerId peer, Outgoing message) {
  // Perhaps in a callback of UCX's, so that it is queued and leaves in the loop's next round.
  if (OnDataThread() && !stopping_) return SendNow(peer, std::move(message), /*pump=*/false);
  // std::function wants copyable closures, so the message is shared instead of copied.
  auto shared = std::make_shared<Outgoing>(std::move(message));
  if (Post([this, peer, shared] { SendNow(peer, std::move(*shared), /*pump=*/true); })) {
    return;
  }
  counters_.send_errors.fetch_add(1, std::memory_order_relaxed);
  if (shared->on_sent) {
    shared->on_sent(absl::CancelledError("data plane: shut down or overloaded"));
  }
}

void UcxDataPlane::SendNow(PeerId peer, Outgoing message, bool pump) {
  if (Peer* const found = Find(peer)) {
    found->Send(std::move(message));
    return pump ? found->Pump() : found->MarkReady();
  }
  counters_.send_errors.fetch_add(1, std::memory_order_relaxed);
  if (message.on_sent) {
    message.on_sent(absl::NotFoundError(absl::StrCat("data plane: no peer ", peer)));
  }
}

void UcxDataPlane::SetTimer(int64_t period_us, std::function<void(int64_t now_us)> on_tick) {
  RunAndWait([&] {
    on_tick_ = std::move(on_tick);
    period_us_ = std::max(period_us, kMinPeriodUs);
    next_tick_us_ = on_tick_ ? NowUs() + period_us_ : kNeverUs;
  });
}

void UcxDataPlane::SetPeerErrorHandler(std::function<void(PeerId, const absl::Status&)> on_error) {
  RunAndWait([&] { on_peer_error_ = std::move(on_error); });
}

std::string UcxDataPlane::Lanes(PeerId peer) {
  std::string lanes;
  RunAndWait([&] {
    if (Peer* const found = Find(peer)) lanes = found->Lanes();
  });
  return lanes;
}

void UcxDataPlane::Shutdown() {
  BATON_CHECK(!OnDataThread()) << "the data plane can't shut itself down";
  MutexLock lock(&shutdown_mutex_);
  if (!thread_.joinable()) return;
  RunAndWait([this] { stopping_ = true; });
  thread_.join();
}

void UcxDataPlane::Teardown() {
  PumpPeers();
  for (const std::function<void()>& task : mailbox_.Close()) task();
  // Peers that were connected a moment ago are still answering: if this end were gone, UCX 1.13
  // would abort them (README, "Known limits"). Those that don't answer are not waited for.
  (void)FlushWorkers(NowUs() + Peer::kSettleUs);
  for (const auto& [id, peer] : peers_) {
    peer->Close(absl::CancelledError("data plane: shut down"));
  }
  const auto all_finished = [this] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const auto& entry) { return entry.second->Finished(); });
  };
  const int64_t deadline_us = NowUs() + kTeardownUs;
  while (!all_finished() && NowUs() < deadline_us) {
    ProgressWorkers();
    for (const auto& [id, peer] : peers_) peer->AdvanceClose(NowUs());
  }
  if (!FlushWorkers(deadline_us) || !all_finished()) {
    // UCX asserts in ucp_worker_destroy that nothing is left. Without progress nothing of it moves
    // any more, so a leak at the end of the process is the lesser evil.
    LOG(kWarning) << "data plane: connections did not end in time; leaving them to the system";
    incoming_.Leave();
    outgoing_.Leave();
    context_ = nullptr;
  }
}

bool UcxDataPlane::FlushWorkers(int64_t deadline_us) {
  // Peers that connect just now have endpoints of UCX's own with half an answer on them.
  const ucp_request_param_t params{};
  const std::array flushes = {ucp_worker_flush_nbx(incoming_.handle(), &params),
                              ucp_worker_flush_nbx(outgoing_.handle(), &params)};
  const auto flushed = [&flushes] {
    return std::all_of(flushes.begin(), flushes.end(), [](ucs_status_ptr_t flush) {
      return !UCS_PTR_IS_PTR(flush) || ucp_request_check_status(flush) != UCS_INPROGRESS;
    });
  };
  while (!flushed() && NowUs() < deadline_us) ProgressWorkers();
  const bool in_time = flushed();
  for (ucs_status_ptr_t flush : flushes) {
    if (UCS_PTR_IS_PTR(flush)) ucp_request_free(flush);
  }
  return in_time;
}

void UcxDataPlane::CloseUcx() {
  incoming_.Close();
  outgoing_.Close();
  for (const auto& [id, peer] : peers_) peer->Abandon();
  peers_.clear();
  receiver_.Abandon();
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace baton
