// Stage 0's end of the stream to another member of its chain, or of its decode service.
#ifndef SERVICES_LINKS_LINK_CALL_H_
#define SERVICES_LINKS_LINK_CALL_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/call_tracker.h"
#include "common/types/instance.h"
#include "proto/baton/v1/decode_ranks.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"

namespace baton::links {

// Keeps itself alive until gRPC is done with it, so its owner may let go at any time.
class LinkCall final : private grpc::ClientBidiReactor<v1::LinkRequest, v1::LinkResponse>,
                       public std::enable_shared_from_this<LinkCall> {
 public:
  // Called on gRPC's threads, one at a time; they must not block.
  struct Callbacks {
    // False: it could not be taken. The stream is then cancelled, for what it said is lost.
    std::function<bool(const v1::LinkResponse&)> on_response;
    std::function<void(const absl::Status&)>
        on_done;  // Last, once; OK means that the stage ended it.
  };

  // More unsent messages than this end the stream: the peer has stopped reading.
  static constexpr size_t kMaxUnsent = 1024;

  // To a worker of that role; `tracker` outlives the call.
  static std::shared_ptr<LinkCall> Open(Role role, const std::shared_ptr<grpc::Channel>& channel,
                                        rpc::CallTracker& tracker, Callbacks callbacks);

  // Any thread. After the end of the stream: nothing.
  void Write(v1::LinkRequest request);
  void Cancel();

 private:
  LinkCall(rpc::CallTracker& tracker, Callbacks callbacks)
      : context_(tracker), callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  // No more writes: gives up the hold that lets others than reactions write.
  void Close();

  rpc::TrackedContext context_;
  const Callbacks callbacks_;
  std::unique_ptr<v1::Prefill::Stub> stage_;  // One of the two.
  std::unique_ptr<v1::DecodeRanks::Stub> follower_;
  v1::LinkResponse response_;
  Mutex mutex_;
  std::deque<v1::LinkRequest> unsent_ ABSL_GUARDED_BY(mutex_);  // The front is being written.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<LinkCall> self_;  // Until OnDone.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_LINK_CALL_H_
