// A data plane that reaches no peer: tests override what they need.
#ifndef COMMON_TRANSPORT_TESTING_STUB_DATA_PLANE_H_
#define COMMON_TRANSPORT_TESTING_STUB_DATA_PLANE_H_

#include <functional>
#include <string>
#include <string_view>

#include "common/transport/data_plane.h"

namespace baton {

class StubDataPlane : public DataPlane {
 public:
  const std::string& address() const override { return address_; }
  absl::Status Register(MessageKind, MessageHandler*) override { return absl::OkStatus(); }
  void Unregister(MessageKind) override {}
  absl::StatusOr<PeerId> Connect(std::string_view) override {
    return absl::UnavailableError("a stub reaches nobody");
  }
  void Disconnect(PeerId) override {}
  void Send(PeerId, Outgoing message) override { message.on_sent(absl::OkStatus()); }
  bool Post(std::function<void()>) override { return false; }
  bool PostReserved(std::function<void()>) override { return false; }
  void SetTimer(int64_t, std::function<void(int64_t)>) override {}
  void SetPeerErrorHandler(std::function<void(PeerId, const absl::Status&)>) override {}
  std::string Lanes(PeerId) override { return ""; }
  const DataPlaneCounters& counters() const override { return counters_; }
  void Shutdown() override {}

 private:
  const std::string address_ = "self";
  DataPlaneCounters counters_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_TESTING_STUB_DATA_PLANE_H_
