#include "tests/sim/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/content.h"

namespace baton::sim {

uint64_t Clients::Add(Client client) {
  clients_.push_back(std::move(client));
  return clients_.size() - 1;
}

void Clients::OnToken(uint64_t id, int32_t token) {
  Client& client = clients_[id];
  if (client.finished) {
    world_.Violate(absl::StrCat("I2: client ", id, " hears a token after its end"));
    return;
  }
  const int index = static_cast<int>(client.tokens.size());
  if (token != AnswerToken(client.prompt_id, index)) {
    world_.Violate(absl::StrCat("client ", id, " hears a wrong token at ", index,
                                ": another request's, repeated or lost"));
  }
  client.tokens.push_back(token);
}

void Clients::OnFinished(uint64_t id, const absl::StatusOr<FinishReason>& outcome) {
  Client& client = clients_[id];
  if (client.finished) {
    world_.Violate(absl::StrCat("I2: client ", id, " ends twice"));
    return;
  }
  client.finished = true;
  client.status = outcome.status();
  if (!outcome.ok()) {
    if (client.must_succeed && !client.cancelled) {
      world_.Violate(
          absl::StrCat("client ", id, " of a healed cluster fails: ", outcome.status().ToString()));
    }
    return;
  }
  if (*outcome == FinishReason::kAbort) return;
  const auto stop = std::find(client.tokens.begin(), client.tokens.end(), kStopToken);
  const bool stopped = stop != client.tokens.end();
  const bool complete = stopped ? stop + 1 == client.tokens.end()
                                : static_cast<int>(client.tokens.size()) == client.max_tokens;
  if (!complete) {
    world_.Violate(absl::StrCat("client ", id, " is told OK after ", client.tokens.size(), " of ",
                                client.max_tokens, " tokens"));
  }
}

void Clients::RouterDied() {
  for (Client& client : clients_) {
    if (!client.submitted || client.finished) continue;
    client.finished = true;
    client.status = absl::UnavailableError("the router died");
  }
}

bool Clients::AllDone() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.finished; });
}

void Clients::CheckDeadlines(int64_t slack_us, bool router_up) {
  if (!router_up) return;
  for (size_t id = 0; id < clients_.size(); ++id) {
    const Client& client = clients_[id];
    if (!client.submitted || client.finished) continue;
    if (world_.now_us() > client.deadline_us + slack_us) {
      world_.Violate(absl::StrCat("I2: client ", id, " has no end ",
                                  (world_.now_us() - client.deadline_us) / 1000,
                                  " ms after its deadline"));
      return;
    }
  }
}

}  // namespace baton::sim
