// Whether an endpoint still does its work. UCX may leave one half open: after two processes have
// connected to and parted from one another a few times, small messages still go over it, and what
// needs the other end's part of the connection (an answer, a rendezvous) is dropped there silently.
// No send fails and no error is reported. The opener detects it in two ways:
//  - pings. Each needs what a rendezvous needs, and is answered over the return endpoint. A peer
//    that does not answer is gone, or the way to it is.
//  - sends. Each must end within the same time, whatever becomes of others.
// Both times are longer by what the slowest link takes for the bytes that are ahead.
//
// Rejected: UCX's own question (UCX_KEEPALIVE_INTERVAL), which ends peers by a segmentation fault
// (README, "Known limits"), and would not need the other end's part.
//
// Event in, actions out; time is handed in.
#ifndef COMMON_TRANSPORT_ENDPOINT_LIFE_H_
#define COMMON_TRANSPORT_ENDPOINT_LIFE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace baton {

struct EndpointLifeOptions {
  int64_t ping_us = 500'000;
  // Without an answer, or without the end of a send. 0: nothing is asked, and nothing judged.
  int64_t silence_us = 3'000'000;
  // A link that carries fewer bytes a microsecond is as good as none.
  double slowest_bytes_per_us = 1.0;
};

// Judges an endpoint that this process has opened.
class EndpointLife {
 public:
  EndpointLife(const EndpointLifeOptions& options, int64_t now_us);

  // A message was given to the transport, and is called by the number that this returns when it has
  // come to its end there.
  uint64_t SendBegan(size_t bytes, int64_t now_us);
  void SendEnded(uint64_t send);
  void Answered(uint64_t sequence, int64_t now_us);

  // The ping that is to be sent now, by its sequence; nullopt: none is due.
  std::optional<uint64_t> TakePing(int64_t now_us);
  // UNAVAILABLE once the endpoint is dead. To be asked every `ping_us` at least: a longer gap is a
  // silence of this process, for which no peer is blamed.
  absl::Status Check(int64_t now_us);

 private:
  struct Ping {
    uint64_t sequence = 0;
    uint64_t bytes_before = 0;  // Given to the transport since the endpoint was opened.
  };
  struct Send {
    int64_t began_us = 0;
    size_t bytes = 0;
    uint64_t bytes_ahead = 0;  // With its own.
  };
  int64_t PatienceUs(uint64_t bytes_ahead) const;
  absl::Status CheckSends(int64_t now_us) const;

  const EndpointLifeOptions options_;
  uint64_t last_sequence_ = 0;
  std::deque<Ping> unanswered_;
  int64_t next_ping_us_;
  int64_t answered_us_;                 // Last; at first when it was opened.
  uint64_t bytes_began_ = 0;            // In all.
  uint64_t bytes_answered_ = 0;         // Those ahead of the last answered ping.
  std::map<uint64_t, Send> under_way_;  // In order of their begins.
  uint64_t bytes_under_way_ = 0;
  uint64_t last_send_ = 0;
  int64_t checked_us_;
};

// Judges a return endpoint, by the pings that its opener must send.
class ReturnLife {
 public:
  ReturnLife(const EndpointLifeOptions& options, int64_t now_us)
      : options_(options), heard_us_(now_us), checked_us_(now_us) {}

  void Heard(int64_t now_us) { heard_us_ = now_us; }
  // UNAVAILABLE for an opener that sends no pings. Waits twice as long as the opener, which should
  // give up first and send a Goodbye. Call it as EndpointLife::Check.
  absl::Status Check(int64_t now_us);

 private:
  const EndpointLifeOptions options_;
  int64_t heard_us_;
  int64_t checked_us_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_ENDPOINT_LIFE_H_
