// `baton replay`: what a router went by when it chose, from its decision log, and what another
// policy would have done. A policy is a pure function over candidates, so the log is enough.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "services/baton/commands.h"
#include "services/router/decision_log.h"

namespace baton {
namespace {

using router::Candidate;
using router::LoggedDecision;

double PredictedMs(const Candidate& candidate) {
  return (candidate.queue_us + candidate.prompt_us + candidate.exposed_us + candidate.wait_us) /
         1e3;
}

std::string NameOf(const LoggedDecision& logged, size_t candidate) {
  const auto& [chain, decode] = logged.decision.considered->names[candidate];
  return absl::StrCat(chain, " and ", decode);
}

// What `policy` would pick of the same candidates.
class OtherPick {
 public:
  explicit OtherPick(const std::string& policy)
      : name_(policy), policy_(router::ParsePolicy(policy)) {}

  const std::string& name() const { return name_; }
  size_t Of(const LoggedDecision& logged) {
    const router::Considered& considered = *logged.decision.considered;
    return router::Pick(policy_, considered.candidates, considered.asked, random_);
  }

 private:
  const std::string name_;
  const router::Policy policy_;
  Random random_{1};
};

void PrintDecision(const LoggedDecision& logged, OtherPick& other) {
  const router::Considered& considered = *logged.decision.considered;
  const std::string when = UtcText(logged.unix_ms * 1000);
  std::printf("request %s, attempt %d, %s: %d prompt tokens, policy %s, %s\n",
              logged.request_id.c_str(), logged.decision.attempt, when.c_str(),
              considered.asked.prompt_tokens, logged.policy.c_str(), logged.outcome.c_str());
  size_t width = 5;
  for (const auto& [chain, decode] : considered.names) {
    width = std::max({width, chain.size(), decode.size()});
  }
  const int wide = static_cast<int>(width);
  std::printf("    %-*s  %-*s  %8s  %9s  %9s  %9s  %9s  %9s  %s\n", wide, "chain", wide, "decode",
              "cached", "queue ms", "prompt ms", "hand ms", "wait ms", "first ms", "requests");
  for (size_t i = 0; i < considered.candidates.size(); ++i) {
    const Candidate& candidate = considered.candidates[i];
    std::printf("  %c %-*s  %-*s  %8d  %9.1f  %9.1f  %9.1f  %9.1f  %9.1f  %lld of %d%s%s\n",
                i == considered.picked ? '*' : ' ', wide, considered.names[i].first.c_str(), wide,
                considered.names[i].second.c_str(), candidate.cached_tokens,
                candidate.queue_us / 1e3, candidate.prompt_us / 1e3, candidate.exposed_us / 1e3,
                candidate.wait_us / 1e3, PredictedMs(candidate),
                static_cast<long long>(candidate.requests), candidate.decode_slots,
                candidate.full ? ", full" : "", candidate.beside ? ", has failed it" : "");
  }
  const Candidate& picked = considered.candidates[considered.picked];
  std::printf("  first token: predicted %.1f ms, ", PredictedMs(picked));
  if (logged.decision.ttft_us < 0) {
    std::printf("none came");
  } else {
    std::printf("took %.1f ms", static_cast<double>(logged.decision.ttft_us) / 1e3);
  }
  std::printf("; cached tokens: predicted %d, ", picked.cached_tokens);
  if (logged.decision.cached_tokens < 0) {
    std::printf("not known\n");
  } else {
    std::printf("found %d\n", logged.decision.cached_tokens);
  }
  const size_t otherwise = other.Of(logged);
  std::printf("  %s picks %s of these: %.1f ms predicted\n", other.name().c_str(),
              otherwise == considered.picked ? "the same" : NameOf(logged, otherwise).c_str(),
              PredictedMs(considered.candidates[otherwise]));
}

// Sums over all lines.
class Summary {
 public:
  void Add(const LoggedDecision& logged, OtherPick& other) {
    const router::Considered& considered = *logged.decision.considered;
    const Candidate& picked = considered.candidates[considered.picked];
    const size_t otherwise = other.Of(logged);
    ++decisions_;
    ++by_policy_[logged.policy];
    differ_ += otherwise == considered.picked ? 0 : 1;
    predicted_ms_ += PredictedMs(picked);
    other_ms_ += PredictedMs(considered.candidates[otherwise]);
    if (logged.decision.ttft_us >= 0) {
      const double took_ms = static_cast<double>(logged.decision.ttft_us) / 1e3;
      took_ms_ += took_ms;
      came_ms_ += PredictedMs(picked);
      ratios_.push_back(took_ms / std::max(0.001, PredictedMs(picked)));
    }
    if (logged.decision.cached_tokens >= 0) {
      cached_predicted_ += picked.cached_tokens;
      cached_found_ += logged.decision.cached_tokens;
    }
  }

  void Print(const std::string& path, const std::string& other) {
    std::printf("%s: %zu decisions", path.c_str(), decisions_);
    const char* separator = ", by ";
    for (const auto& [policy, count] : by_policy_) {
      std::printf("%s%s %zu", separator, policy.c_str(), count);
      separator = ", ";
    }
    std::printf("\n");
    if (!ratios_.empty()) {
      std::sort(ratios_.begin(), ratios_.end());
      const auto count = static_cast<double>(ratios_.size());
      std::printf(
          "  first token: predicted %.1f ms, took %.1f ms in the mean; took over predicted: %.2f "
          "at the median, %.2f at the 90th percentile\n",
          came_ms_ / count, took_ms_ / count, ratios_[ratios_.size() / 2],
          ratios_[ratios_.size() * 9 / 10]);
    }
    std::printf("  cached tokens: predicted %lld, found %lld\n",
                static_cast<long long>(cached_predicted_), static_cast<long long>(cached_found_));
    const auto all = static_cast<double>(decisions_);
    std::printf(
        "  %s picks another pair in %zu of them; its picks: %.1f ms predicted, those made: "
        "%.1f ms\n",
        other.c_str(), differ_, other_ms_ / all, predicted_ms_ / all);
  }

  size_t decisions() const { return decisions_; }

 private:
  size_t decisions_ = 0;
  size_t differ_ = 0;
  std::map<std::string, size_t> by_policy_;
  std::vector<double> ratios_;
  double predicted_ms_ = 0;  // All that were picked,
  double came_ms_ = 0;       // and of those that had a first token.
  double took_ms_ = 0;
  double other_ms_ = 0;
  int64_t cached_predicted_ = 0;
  int64_t cached_found_ = 0;
};

absl::Status Replay(const v1::Options& options) {
  const std::string& path = options.decision_log();
  const std::string& wanted = options.request_id();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  OtherPick other(options.load_balance_policy());
  Summary summary;
  bool found = false;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const bool whole = !file.eof();  // The router may be about to write the last one.
    if (absl::StartsWith(line, "{\"lost_lines\"")) continue;
    const absl::StatusOr<LoggedDecision> logged = router::ParseDecision(line);
    if (!logged.ok()) {
      if (!whole) break;
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", number, ": ", logged.status().message()));
    }
    if (wanted.empty()) {
      summary.Add(*logged, other);
    } else if (logged->request_id == wanted) {
      PrintDecision(*logged, other);
      found = true;
    }
  }
  if (!wanted.empty() && !found) {
    return absl::NotFoundError(absl::StrCat(path, " has no decision about request ", wanted));
  }
  if (wanted.empty() && summary.decisions() == 0) {
    return absl::NotFoundError(absl::StrCat(path, " has no decision"));
  }
  if (wanted.empty()) summary.Print(path, other.name());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunReplayCommand(const config::ParsedOptions& options) {
  return Replay(options.values);
}

}  // namespace baton
