// A decode service, or one of its stages or ranks: a chain (services/prefill) whose prompts others
// read, with the lease table that takes in this process's part of their KV, and on stage 0's rank 0
// the calls of routers.
//
//   auto service = DecodeService::Create(options, parts);   // listens
//   ... register with the router, (*service)->OnMembers(...) when they change ...
//   (*service)->BeginDrain(deadline_us); ... until AtRest() ...; (*service)->Stop();
//   data_plane->Shutdown(); service->reset();
#ifndef SERVICES_DECODE_DECODE_SERVICE_H_
#define SERVICES_DECODE_DECODE_SERVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/decode/kv_receiver.h"
#include "services/prefill/prefill_options.h"
#include "services/prefill/prefill_service.h"
#include "services/worker/core/peer_worker.h"

namespace baton::decode {

class DecodeService {
 public:
  using Options = prefill::PrefillOptions;
  using Parts = prefill::PrefillService::Parts;

  // `options`: as SchedulingOfDecode makes them; `chain_id` may be empty for a service of one
  // process. `parts`: all but those of a chain that others decode for. INVALID_ARGUMENT for options
  // that don't fit the executor; UNAVAILABLE if it cannot listen.
  static absl::StatusOr<std::unique_ptr<DecodeService>> Create(const Options& options,
                                                               const Parts& parts);
  ~DecodeService() { Stop(); }

  int grpc_port() const { return chain_->grpc_port(); }

  // As PrefillService's:
  void OnMembers(const std::vector<worker::PeerWorker>& members) { chain_->OnMembers(members); }
  void OnEndpoints() {
    chain_->OnEndpoints();
    kv_->OnEndpoints();
  }
  // Takes requests: not draining, and its members are together. Of another one than the first:
  // whether the service takes requests is the first's to report.
  bool ready() const { return chain_->ready(); }
  v1::WorkerLoad load() const { return chain_->load(); }
  std::vector<uint64_t> linked() const { return chain_->linked(); }
  // OK while loop, data thread and executor make progress; never waits for a peer.
  absl::Status Liveness() const;
  void BeginDrain(int64_t deadline_us) { chain_->BeginDrain(deadline_us); }
  bool AtRest() { return chain_->AtRest(); }
  DrainCounts drain_counts() { return chain_->drain_counts(); }
  bool Drain(int64_t limit_ms) { return chain_->Drain(limit_ms); }
  void Stop() {
    if (chain_ != nullptr) chain_->Stop();
  }

 private:
  class Front;

  DecodeService(const Options& options, const Parts& parts);

  std::unique_ptr<KvReceiver> kv_;
  std::unique_ptr<prefill::PrefillService> chain_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SERVICE_H_
