// Workers that do what a test tells them: real gRPC servers for Decode and Prefill without a model
// behind them, and their membership at a router.
#ifndef SERVICES_ROUTER_TESTING_FAKE_WORKERS_H_
#define SERVICES_ROUTER_TESTING_FAKE_WORKERS_H_

#include <grpcpp/server.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "proto/baton/v1/decode.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "services/router/core/membership.h"
#include "services/router/testing/lease_client.h"

namespace baton::router {

// How a fake worker answers; the same for every request.
struct FakeBehaviour {
  grpc::Status reserve;         // Decode.Reserve.
  std::vector<int32_t> tokens;  // Generate's.
  bool hang_after_tokens = false;
  grpc::Status end;  // Generate's after the tokens; OK: Finished comes first.
  v1::FinishReason reason = v1::FINISH_REASON_LENGTH;
  bool start_hangs = false;      // Also Prefill.Generate, before it tells of the prompt.
  grpc::Status start;            // Prefill.Start, or Prefill.Generate in place of all else.
  int32_t wrong_prompt_ids = 0;  // Prefill.Generate: how far they are from the prompt's.
  // The call Relay, and how it answers a request.
  enum class Relay : uint8_t {
    kNone,
    kWhole,      // As above says.
    kBreaks,     // All but Finished; then the relay ends.
    kMalformed,  // An event that is none, after events of attempts that there are not.
  };
  Relay relay = Relay::kNone;
};

// What fake workers have seen. Thread-safe.
class FakeRecord {
 public:
  // Locks for ThreadSanitizer, which doesn't see how gRPC's threads come by the record.
  FakeRecord() { MutexLock lock(&mutex_); }
  struct Seen {
    std::vector<v1::ReserveRequest> reserves;
    std::vector<v1::StartRequest> starts;
    std::vector<v1::StartRequest> generations;  // Prefill.Generate.
    std::vector<uint64_t> decode_aborts;
    std::vector<uint64_t> prefill_aborts;
    int streams = 0;
    int relayed_streams = 0;
    int streams_cancelled = 0;
    int starts_cancelled = 0;
  };

  void Note(const std::function<void(Seen&)>& change) {
    MutexLock lock(&mutex_);
    change(seen_);
  }
  Seen Get() const {
    MutexLock lock(&mutex_);
    return seen_;
  }
  // Waits until it holds; a test that waits in vain ends by its own time limit.
  void Await(const std::function<bool(const Seen&)>& holds) const {
    MutexLock lock(&mutex_);
    mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return holds(seen_); });
  }

 private:
  mutable Mutex mutex_;
  Seen seen_ ABSL_GUARDED_BY(mutex_);
};

class FakeRelays;

// One worker process in this process: serves both services, registers as `info` says.
class FakeWorker {
 public:
  explicit FakeWorker(WorkerInfo info, const FakeBehaviour& behaviour = {});
  ~FakeWorker();

  // Registers, then reports ready, linking the members that it was told of last.
  grpc::Status Register(v1::Cluster::Stub& cluster);
  grpc::Status Beat();

  void BreakLease() { lease_.Break(); }

  // Ends every connection to it at once, as the death of the process would; its lease stands.
  void Kill();

  FakeRecord& record() { return record_; }
  const std::string& id() const { return info_.instance.id; }

 private:
  class Decode;
  class Prefill;

  WorkerInfo info_;
  FakeRecord record_;
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<Prefill> prefill_;
  std::unique_ptr<FakeRelays> relays_;
  std::unique_ptr<grpc::Server> server_;
  LeaseClient lease_;
  std::vector<uint64_t> linked_;  // Incarnations of its chain or decode service.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_TESTING_FAKE_WORKERS_H_
