#include "tests/sim/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/drain_status.h"
#include "common/base/status.h"
#include "tests/sim/content.h"

namespace baton::sim {

uint64_t Clients::Add(Client client) {
  client.prompt_logprobs = WantsPromptTokens(client.prompt_id);
  clients_.push_back(std::move(client));
  return clients_.size() - 1;
}

void Clients::OnPrompt(uint64_t id, const std::vector<SampledToken>& tokens) {
  Client& client = clients_[id];
  if (client.finished || !client.tokens.empty() || !client.prompt_logprobs ||
      std::exchange(client.prompt_told, true)) {
    world_.Violate(absl::StrCat("client ", id, " hears of its prompt unasked, twice or too late"));
    return;
  }
  for (int i = 1; i < client.prompt_tokens; ++i) {
    const bool there = static_cast<size_t>(i) <= tokens.size();
    if (there && tokens[static_cast<size_t>(i) - 1] == PromptToken(client.prompt_id, i)) continue;
    world_.Violate(absl::StrCat("client ", id, " hears of another prompt at ", i));
    return;
  }
}

void Clients::OnToken(uint64_t id, int32_t token) {
  Client& client = clients_[id];
  if (client.finished) {
    world_.Violate(absl::StrCat("I2: client ", id, " hears a token after its end"));
    return;
  }
  if (client.prompt_logprobs && !client.prompt_told) {
    world_.Violate(absl::StrCat("client ", id, " hears a token before its prompt's"));
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
    if (only_drains_ && !client.cancelled) CheckDrained(id, client);
    return;
  }
  if (*outcome == FinishReason::kAbort) return;
  if (client.prompt_told != client.prompt_logprobs) {
    world_.Violate(absl::StrCat("client ", id, " is told OK without its prompt's tokens"));
  }
  const auto stop = std::find(client.tokens.begin(), client.tokens.end(), kStopToken);
  const bool stopped = stop != client.tokens.end();
  const bool complete = stopped ? stop + 1 == client.tokens.end()
                                : static_cast<int>(client.tokens.size()) == client.max_tokens;
  if (!complete) {
    world_.Violate(absl::StrCat("client ", id, " is told OK after ", client.tokens.size(), " of ",
                                client.max_tokens, " tokens"));
  }
}

void Clients::CheckDrained(uint64_t id, const Client& client) {
  if (!absl::IsUnavailable(client.status)) return;
  const bool by_router = LegOf(client.status) == "router";  // Its drain, or no pair in time.
  if (by_router) return;
  if (!IsEndedByDrain(client.status)) {
    world_.Violate(absl::StrCat(
        "client ", id, " fails by a drain that should have let it be: ", client.status.ToString()));
  } else if (client.tokens.empty() && !client.prompt_told) {
    world_.Violate(absl::StrCat(
        "client ", id, " has no token yet and is not begun elsewhere: ", client.status.ToString()));
  }
}

void Clients::RouterDied(int router) {
  for (Client& client : clients_) {
    if (client.router != router || !client.submitted || client.finished) continue;
    client.finished = true;
    client.status = absl::UnavailableError("the router died");
  }
}

bool Clients::AllDone() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.finished; });
}

bool Clients::AnyRuns(int router) const {
  return std::any_of(clients_.begin(), clients_.end(), [router](const Client& c) {
    return c.router == router && c.taken && !c.finished;
  });
}

void Clients::CheckDeadlines(int64_t slack_us, const std::function<bool(int router)>& router_up) {
  for (size_t id = 0; id < clients_.size(); ++id) {
    const Client& client = clients_[id];
    if (!client.submitted || client.finished || !router_up(client.router)) continue;
    if (world_.now_us() > client.deadline_us + slack_us) {
      world_.Violate(absl::StrCat("I2: client ", id, " has no end ",
                                  (world_.now_us() - client.deadline_us) / 1000,
                                  " ms after its deadline"));
      return;
    }
  }
}

}  // namespace baton::sim
