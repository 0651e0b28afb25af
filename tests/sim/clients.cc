#include "tests/sim/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "tests/sim/content.h"

namespace baton::sim {

void Clients::Submitted(uint64_t id, bool router_ready) {
  Client& client = clients_[id];
  client.taken = true;
  // No excuse later: what the first router has known it does not forget.
  if (client.router == 0) first_router_was_ready_ |= router_ready;
  client.too_early = client.router == 0 && !first_router_was_ready_;
}

uint64_t Clients::Add(Client client) {
  client.prompt_logprobs = WantsPromptTokens(client.prompt_id);
  oracle_.Expect({client.prompt_id, client.prompt_tokens, client.max_tokens});
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
  const Oracle::Sequence& sequence = oracle_.Of(client.prompt_id);
  for (int i = 1; i < client.prompt_tokens; ++i) {
    const bool there = static_cast<size_t>(i) <= tokens.size();
    const uint64_t before = sequence.X(i - 1, sequence.layers);
    const SampledToken right = TellPromptToken(client.prompt_id, i, before);
    if (there && tokens[static_cast<size_t>(i) - 1] == right) continue;
    world_.Violate(absl::StrCat("client ", id, " hears of another prompt at ", i));
    return;
  }
}

bool Clients::OnToken(uint64_t id, int32_t token) {
  Client& client = clients_[id];
  if (client.finished) {
    world_.Violate(absl::StrCat("I2: client ", id, " hears a token after its end"));
    return false;
  }
  if (client.prompt_logprobs && !client.prompt_told) {
    world_.Violate(absl::StrCat("client ", id, " hears a token before its prompt's"));
  }
  const size_t index = client.tokens.size();
  const Oracle::Sequence& sequence = oracle_.Of(client.prompt_id);
  if (index >= sequence.answer.size() || token != sequence.answer[index].token) {
    world_.Violate(absl::StrCat("client ", id, " hears a wrong token at ", index,
                                ": another request's, repeated or lost"));
  }
  client.tokens.push_back(token);
  return static_cast<int>(client.tokens.size()) == client.stop_after;
}

void Clients::OnFinished(uint64_t id, const absl::StatusOr<FinishReason>& outcome) {
  Client& client = clients_[id];
  if (client.finished) {
    world_.Violate(absl::StrCat("I2: client ", id, " ends twice"));
    return;
  }
  client.finished = true;
  client.status = outcome.status();
  // Decode processes make up aborts that come before their reservations.
  const bool made_up =
      outcome.status().message().find("aborted before it was reserved") != std::string::npos;
  if (absl::IsCancelled(outcome.status()) && !made_up) {
    world_.Violate(absl::StrCat("client ", id, " hears of a cancellation that is not its own: ",
                                outcome.status().ToString()));
  }
  const bool ended = !outcome.ok() || *outcome == FinishReason::kAbort;
  if (ended && client.group >= 0) EndGroup(id);
  if (!outcome.ok()) {
    if (client.must_succeed && !client.left) {
      world_.Violate(
          absl::StrCat("client ", id, " of a healed cluster fails: ", outcome.status().ToString()));
    }
    if (topology_.calm && !client.left) CheckCalm(id, client);
    return;
  }
  if (*outcome == FinishReason::kAbort) {
    if (client.aborted) return;
    return world_.Violate(absl::StrCat("client ", id, " is aborted, which nobody asked for"));
  }
  if (client.prompt_told != client.prompt_logprobs) {
    world_.Violate(absl::StrCat("client ", id, " is told OK without its prompt's tokens"));
  }
  // Its text is complete; what decode had sent by then came along.
  const bool matched =
      client.stop_after > 0 && static_cast<int>(client.tokens.size()) >= client.stop_after;
  if (matched && *outcome == FinishReason::kStop) return;
  const Oracle::Sequence& sequence = oracle_.Of(client.prompt_id);
  if (client.tokens.size() != sequence.answer.size() || *outcome != sequence.reason) {
    world_.Violate(absl::StrCat("client ", id, " is told OK after ", client.tokens.size(), " of ",
                                sequence.answer.size(), " tokens, or for a wrong reason"));
  }
}

// As the front does it: the first of them that fails ends the answer.
void Clients::EndGroup(uint64_t id) {
  for (size_t other = 0; other < clients_.size(); ++other) {
    const Client& client = clients_[other];
    if (other == id || client.group != clients_[id].group || client.finished || client.left)
      continue;
    Covered<"client: a choice takes the others with it">();
    cancel_(other);
  }
}

void Clients::ServedBy(uint64_t id, const Servers& servers) {
  if (!clients_[id].must_succeed) return;
  served_.insert(servers.chain_id);
  served_.insert(servers.decode);
}

void Clients::CheckCalm(uint64_t id, const Client& client) {
  const absl::Status& status = client.status;
  const auto fails = [&](const char* why) {
    world_.Violate(
        absl::StrCat("client ", id, " fails in calm weather", why, ": ", status.ToString()));
  };
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      if (world_.now_us() < client.deadline_us) fails(" before its deadline");
      return;
    case absl::StatusCode::kResourceExhausted:
      if (Fits(client) && CountRunning() < std::min(topology_.max_queued, topology_.max_requests)) {
        fails(" for lack of room that there is");
      }
      return;
    case absl::StatusCode::kInvalidArgument:
      if (Fits(client)) fails(" for its length, which fits");
      return;
    case absl::StatusCode::kAlreadyExists:
      if (!HasTwin(id)) fails(", with an id of its own");
      return;
    case absl::StatusCode::kUnavailable:
      if (topology_.only_drains) return CheckDrained(id, client);
      // Who has just started knows of no worker, and a name may have led none to the first one yet.
      if (topology_.first_router_stands && (client.router != 0 || client.too_early)) return;
      return fails("");
    default:
      return fails("");
  }
}

void Clients::CheckDrained(uint64_t id, const Client& client) {
  // The router's drain, or no pair in time, perhaps behind one that could not connect.
  if (LegOf(client.status) == "router") return;
  if (client.status.message().find("can't be connected to; then no pair") !=
      std::string_view::npos) {
    return;
  }
  if (!IsEndedByDrain(client.status)) {
    world_.Violate(absl::StrCat(
        "client ", id, " fails by a drain that should have let it be: ", client.status.ToString()));
  } else if (client.tokens.empty() && !client.prompt_told) {
    world_.Violate(absl::StrCat(
        "client ", id, " has no token yet and is not begun elsewhere: ", client.status.ToString()));
  }
}

int Clients::CountRunning() const {
  return static_cast<int>(std::count_if(clients_.begin(), clients_.end(),
                                        [](const Client& c) { return c.taken && !c.finished; }));
}

bool Clients::HasTwin(uint64_t id) const {
  for (size_t other = 0; other < clients_.size(); ++other) {
    if (other != id && clients_[other].request_id == clients_[id].request_id) return true;
  }
  return false;
}

// Into every pool of its own.
bool Clients::Fits(const Client& client) const {
  const int tokens = client.prompt_tokens + client.max_tokens;
  const int pages = (tokens + topology_.page_size - 1) / topology_.page_size;
  return tokens <= topology_.max_context_tokens &&
         pages <= std::min(topology_.prefill_pages, topology_.decode_pages);
}

void Clients::AbortCalled(int router, const std::string& request_id) {
  for (Client& client : clients_) {
    if (client.router == router && client.request_id == request_id) client.aborted = true;
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
