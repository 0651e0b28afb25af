// A later stage's end of the stream from stage 0.
#ifndef SERVICES_LINKS_LINK_STREAM_H_
#define SERVICES_LINKS_LINK_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "proto/baton/v1/prefill.grpc.pb.h"

namespace baton::links {

// Keeps itself alive until gRPC is done with it, so its user may let go at any time.
class LinkStream final : public grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>,
                         public std::enable_shared_from_this<LinkStream> {
 public:
  // Called on gRPC's threads; they must not block. The stream is ended with RESOURCE_EXHAUSTED when
  // on_request returns false: the loop's mailbox is full or the service stops.
  struct Callbacks {
    std::function<bool(std::shared_ptr<LinkStream>, v1::LinkRequest)> on_request;
    std::function<void(const std::shared_ptr<LinkStream>&)>
        on_end;  // Nothing more comes; Finish it.
  };

  // More unsent messages than this end the stream: stage 0 has stopped reading.
  static constexpr size_t kMaxUnsent = 4096;

  // Starts reading. The raw pointer is for gRPC, which ends the object through OnDone.
  static LinkStream* Open(Callbacks callbacks);

  // Any thread. Finish ends the stream once; after it, nothing is written.
  void Write(v1::LinkResponse response);
  void Finish(const absl::Status& status);

 private:
  explicit LinkStream(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Callbacks callbacks_;
  v1::LinkRequest request_;
  Mutex mutex_;
  std::deque<v1::LinkResponse> unsent_ ABSL_GUARDED_BY(mutex_);  // The front is being written.
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);   // Waits for the write under way.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<LinkStream> self_;  // Until OnDone.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_LINK_STREAM_H_
