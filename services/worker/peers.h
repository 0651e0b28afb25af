// What a service needs of its worker's cluster client; tests bring their own.
#ifndef SERVICES_WORKER_PEERS_H_
#define SERVICES_WORKER_PEERS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "services/worker/cluster_client.h"

namespace baton::worker {

// Thread-safe.
class Peers {
 public:
  virtual ~Peers() = default;
  // The endpoint of one incarnation of a peer; nullopt: not connected.
  virtual std::optional<PeerId> Find(const InstanceRef& instance) const = 0;
  // Wants endpoints to these. True: one is being opened, and the service will hear of it; else Find
  // has each, or it can't be reached at the moment.
  virtual bool Want(const std::vector<InstanceRef>&) const { return false; }
  // The endpoints to decode services.
  virtual std::vector<PeerId> Decodes() const = 0;
  // The stage's readiness has changed; the router should be told.
  virtual void OnReadyChanged() const {}
  // A router (by its incarnation) has sent a prompt of these keys; the others should be told.
  virtual void OnPromptTaken(uint64_t, TakenPrompts::Keys) const {}
};

// Over the real client, which is made after the service, since it registers the service's address.
class ClusterPeers final : public Peers {
 public:
  // Until then there are no peers. `client` must outlive this.
  void Attach(const ClusterClient* client) { client_ = client; }

  std::optional<PeerId> Find(const InstanceRef& instance) const override {
    const ClusterClient* client = client_;
    return client == nullptr ? std::nullopt : client->Find(instance);
  }
  bool Want(const std::vector<InstanceRef>& peers) const override {
    const ClusterClient* client = client_;
    return client != nullptr && client->Want(peers);
  }
  std::vector<PeerId> Decodes() const override {
    const ClusterClient* client = client_;
    if (client == nullptr) return {};
    return client->Endpoints(Role::kDecode);
  }
  void OnReadyChanged() const override {
    const ClusterClient* client = client_;
    if (client != nullptr) client->ReportSoon();
  }
  void OnPromptTaken(uint64_t router, TakenPrompts::Keys prefix_keys) const override {
    const ClusterClient* client = client_;
    if (client != nullptr) client->ReportPrompt(router, std::move(prefix_keys));
  }

 private:
  std::atomic<const ClusterClient*> client_{nullptr};
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_PEERS_H_
