#include "services/router/decision_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/json/parse_json.h"

namespace baton::router {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostCandidates = 4096;

// Calls `field(name, member)` for all that is known of a candidate but its names and slots.
template <typename Of, typename Field>
void EachField(Of& candidate, const Field& field) {
  field("full", candidate.full);
  field("beside", candidate.beside);
  field("cached_tokens", candidate.cached_tokens);
  field("queued_tokens", candidate.queued_tokens);
  field("chain_requests", candidate.chain_requests);
  field("requests", candidate.requests);
  field("decode_slots", candidate.decode_slots);
  field("chain_used", candidate.chain_used);
  field("decode_used", candidate.decode_used);
  field("ring_distance", candidate.ring_distance);
  field("place", candidate.place);
  field("queue_us", candidate.queue_us);
  field("prompt_us", candidate.prompt_us);
  field("exposed_us", candidate.exposed_us);
  field("wait_us", candidate.wait_us);
  field("token_us", candidate.token_us);
}

template <typename T>
bool Read(const Json& object, const char* key, T& value) {
  const auto found = object.find(key);
  if (found == object.end()) return false;
  if constexpr (std::is_same_v<T, bool>) {
    if (!found->is_boolean()) return false;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!found->is_number()) return false;
  } else {
    if (!found->is_number_integer()) return false;
  }
  value = found->get<T>();
  return true;
}

Json JsonOf(const Considered& considered) {
  Json candidates = Json::array();
  for (size_t i = 0; i < considered.candidates.size(); ++i) {
    Json candidate = {{"chain", considered.names[i].first}, {"decode", considered.names[i].second}};
    EachField(considered.candidates[i],
              [&](const char* name, const auto& value) { candidate[name] = value; });
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

bool ReadCandidates(const Json& line, Considered& considered) {
  const auto list = line.find("candidates");
  if (list == line.end() || !list->is_array() || list->empty() || list->size() > kMostCandidates) {
    return false;
  }
  for (const Json& object : *list) {
    std::pair<std::string, std::string> names;
    Candidate candidate;
    bool right = object.is_object() && Read(object, "chain", names.first) &&
                 Read(object, "decode", names.second);
    EachField(candidate,
              [&](const char* name, auto& value) { right = right && Read(object, name, value); });
    if (!right) return false;
    considered.names.push_back(std::move(names));
    considered.candidates.push_back(candidate);
  }
  return Read(line, "picked", considered.picked) && considered.picked < list->size();
}

}  // namespace

std::string LineOf(const LoggedDecision& logged) {
  const Decision& decision = logged.decision;
  const Considered& considered = *decision.considered;
  const Json line = {{"request_id", logged.request_id},
                     {"attempt", decision.attempt},
                     {"unix_ms", logged.unix_ms},
                     {"policy", logged.policy},
                     {"prompt_tokens", considered.asked.prompt_tokens},
                     {"has_key", considered.asked.has_key},
                     {"length_place", considered.asked.length_place},
                     {"outcome", logged.outcome},
                     {"ttft_us", decision.ttft_us},
                     {"cached_tokens", decision.cached_tokens},
                     {"picked", considered.picked},
                     {"candidates", JsonOf(considered)}};
  // Ids are clients' bytes.
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<LoggedDecision> ParseDecision(std::string_view text) {
  absl::StatusOr<Json> line = ParseJson(text, "");
  if (!line.ok()) return line.status();
  LoggedDecision logged;
  auto considered = std::make_shared<Considered>();
  Asked& asked = considered->asked;
  Decision& decision = logged.decision;
  const bool right =
      line->is_object() && Read(*line, "request_id", logged.request_id) &&
      Read(*line, "attempt", decision.attempt) && Read(*line, "unix_ms", logged.unix_ms) &&
      Read(*line, "policy", logged.policy) && Read(*line, "outcome", logged.outcome) &&
      Read(*line, "prompt_tokens", asked.prompt_tokens) && Read(*line, "has_key", asked.has_key) &&
      Read(*line, "length_place", asked.length_place) && Read(*line, "ttft_us", decision.ttft_us) &&
      Read(*line, "cached_tokens", decision.cached_tokens) && ReadCandidates(*line, *considered);
  if (!right) return absl::InvalidArgumentError("not a line of a decision log");
  decision.considered = std::move(considered);
  return logged;
}

DecisionLog::DecisionLog(int fd, std::string path, Policy policy, int64_t bytes)
    : path_(std::move(path)),
      policy_(policy),
      bytes_(bytes),
      writer_(fd, [](uint64_t lines) { return absl::StrCat("{\"lost_lines\": ", lines, "}\n"); }) {}

absl::StatusOr<std::shared_ptr<DecisionLog>> DecisionLog::Open(const std::string& path,
                                                               Policy policy) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("--decision-log: cannot open ", path));
  }
  struct stat now {};
  const int64_t bytes = fstat(fd, &now) == 0 ? now.st_size : 0;
  std::shared_ptr<DecisionLog> log(new DecisionLog(fd, path, policy, bytes));
  close(fd);  // The writer has a duplicate.
  return log;
}

void DecisionLog::Write(const std::string& request_id, const FinishCall& end, int64_t now_us,
                        int64_t unix_ms) {
  for (const Decision& decision : end.decisions) {
    if (full_ || decision.considered == nullptr) continue;
    LoggedDecision logged;
    logged.request_id = request_id;
    logged.policy = PolicyName(policy_);
    logged.unix_ms = unix_ms - (now_us - decision.begun_us) / 1000;
    const bool last = &decision == &end.decisions.back();
    logged.outcome = last && end.outcome.ok()
                         ? "ok"
                         : std::string(last ? end.outcome.status().message() : decision.failure);
    logged.decision = decision;
    std::string line = LineOf(logged);
    bytes_ += static_cast<int64_t>(line.size());
    full_ = bytes_ > kMostBytes;
    if (full_) {
      LOG(kWarning) << "--decision-log: " << path_ << " has as much as it may, " << kMostBytes
                    << " bytes; decisions are not written any more";
      continue;
    }
    writer_.Write(std::move(line));
  }
}

}  // namespace baton::router
