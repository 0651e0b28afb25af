// What the prefill service needs of the worker's cluster client; tests bring their own.
#ifndef SERVICES_PREFILL_CHAIN_PEERS_H_
#define SERVICES_PREFILL_CHAIN_PEERS_H_

#include <atomic>
#include <optional>
#include <vector>

#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "services/worker/cluster_client.h"

namespace baton::prefill {

// Thread-safe.
class Peers {
 public:
  virtual ~Peers() = default;
  // The endpoint of one incarnation of a peer; nullopt: not connected.
  virtual std::optional<PeerId> Find(const InstanceRef& instance) const = 0;
  // Every decode service's endpoint.
  virtual std::vector<PeerId> Decodes() const = 0;
  // The stage's readiness has changed; the router should hear of it.
  virtual void OnReadyChanged() const {}
};

// Over the real client, which is made after the service, since it registers the service's address.
class ClusterPeers final : public Peers {
 public:
  // Until then there are no peers. `client` must outlive this.
  void Attach(const worker::ClusterClient* client) { client_ = client; }

  std::optional<PeerId> Find(const InstanceRef& instance) const override {
    const worker::ClusterClient* client = client_;
    return client == nullptr ? std::nullopt : client->Find(instance);
  }
  std::vector<PeerId> Decodes() const override {
    const worker::ClusterClient* client = client_;
    if (client == nullptr) return {};
    return client->Endpoints(Role::kDecode);
  }
  void OnReadyChanged() const override {
    const worker::ClusterClient* client = client_;
    if (client != nullptr) client->ReportSoon();
  }

 private:
  std::atomic<const worker::ClusterClient*> client_{nullptr};
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_PEERS_H_
