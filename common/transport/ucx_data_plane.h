// DataPlane over UCX: the thread, its loop, and the workers that it owns. Peers and messages are
// peer.h's and receiver.h's.
#ifndef COMMON_TRANSPORT_UCX_DATA_PLANE_H_
#define COMMON_TRANSPORT_UCX_DATA_PLANE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/mailbox.h"
#include "common/transport/offer_ledger.h"
#include "common/transport/peer.h"
#include "common/transport/receiver.h"
#include "common/transport/ucx_worker.h"

namespace baton {

class UcxDataPlane : public DataPlane {
 public:
  explicit UcxDataPlane(const DataPlaneOptions& options);
  ~UcxDataPlane() override;

  // Starts the thread and waits until it has opened UCX. Once, before anything else.
  absl::Status Start();

  const std::string& address() const override { return address_; }
  absl::Status Register(MessageKind kind, MessageHandler* handler) override;
  void Unregister(MessageKind kind) override;
  absl::StatusOr<PeerId> Connect(std::string_view address) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, Outgoing message) override;
  bool Post(std::function<void()> task) override;
  bool PostReserved(std::function<void()> task) override;
  void SetTimer(int64_t period_us, std::function<void(int64_t now_us)> on_tick) override;
  void SetPeerErrorHandler(std::function<void(PeerId, const absl::Status&)> on_error) override;
  std::string Lanes(PeerId peer) override;
  const DataPlaneCounters& counters() const override { return counters_; }
  void Shutdown() override;

 private:
  // Everything below runs on the data thread, but for RunAndWait.
  absl::Status OpenUcx();
  absl::Status OpenWorkers();
  absl::Status WatchDescriptors();
  void Run();
  void RunMailbox();
  bool Progress();
  bool ProgressWorkers();
  bool ArmWorkers();
  Peer* Find(PeerId id);  // Null: there is none, or none any more.
  void PumpPeers();
  void ReapPeers();
  void Tick();
  void Sleep();
  void Teardown();
  bool FlushWorkers(int64_t deadline_us);
  void CloseUcx();
  void AnswerGreetings();
  void AnswerGoodbyes();
  void AnswerPings();
  void LookAfterPeers();
  void Fail(Peer& peer, PeerId id, const absl::Status& failure);
  void CloseReturn(PeerId id, const absl::Status& reason);
  void OfferPulls(const GreetingSender& greeting, PeerId to);
  bool Pull();
  absl::StatusOr<PeerId> ConnectNow(std::string_view address, Peer::Direction direction);
  void SendNow(PeerId peer, Outgoing message, bool pump);

  // Runs `task` on the data thread and waits for it; false if the thread has ended.
  bool RunAndWait(const std::function<void()>& task);
  bool OnDataThread() const { return std::this_thread::get_id() == data_thread_; }

  const DataPlaneOptions options_;
  DataPlaneCounters counters_;
  Mailbox mailbox_;
  Mutex shutdown_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(shutdown_mutex_);
  std::thread::id data_thread_;   // Constant after Start.
  std::string address_;           // Where incoming_ is reached.
  std::string greeting_address_;  // Where outgoing_ is reached; without the secret.
  bool stopping_ = false;         // Data thread; set by the task that Shutdown posts.

  ucp_context_h context_ = nullptr;
  // Others connect to the one, which has the return endpoints too, and Connect uses the other: so
  // of two workers always the same one opens connections to the other.
  UcxWorker incoming_;
  UcxWorker outgoing_;
  int epoll_fd_ = -1;
  OfferLedger ledger_;
  Gate gate_;
  Receiver receiver_;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  Peer::Shared shared_;
  std::vector<PeerId> closing_;  // Closed by us, not yet Finished().
  PeerId last_peer_ = 0;
  int64_t next_look_us_ = 0;
  std::function<void(PeerId, const absl::Status&)> on_peer_error_;
  std::function<void(int64_t)> on_tick_;
  int64_t period_us_ = 0;
  int64_t next_tick_us_ = kNeverUs;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_UCX_DATA_PLANE_H_
