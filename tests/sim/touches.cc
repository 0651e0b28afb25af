#include "tests/sim/touches.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/world.h"

namespace baton::sim {
namespace {

constexpr size_t kKept = 16;  // Lines kept per subject.

std::string Attempt(uint64_t id) { return absl::StrCat("attempt ", id); }
std::string Client(uint64_t id) { return absl::StrCat("client ", id); }
std::string Generation(uint64_t id) { return absl::StrCat("generation ", id); }

}  // namespace

void Touches::Add(const std::string& subject, const std::string& line) {
  std::deque<Touch>& touches = touches_[subject];
  touches.push_back({++order_, line});
  if (touches.size() > kKept) touches.pop_front();
}

// A name and the number after it, whole.
std::vector<std::string> Touches::SubjectsIn(const std::string& text) const {
  std::vector<std::string> found;
  for (size_t space = text.find(' '); space != std::string::npos;
       space = text.find(' ', space + 1)) {
    size_t end = space + 1;
    while (end < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end == space + 1) continue;
    // "page 3", and "decode-2 page 3".
    size_t begin = space == 0 ? std::string::npos : text.rfind(' ', space - 1);
    for (int words = 0; words < 2; ++words) {
      const size_t first = begin == std::string::npos ? 0 : begin + 1;
      const std::string subject = text.substr(first, end - first);
      if (touches_.contains(subject)) found.push_back(subject);
      if (begin == std::string::npos || begin == 0) break;
      begin = text.rfind(' ', begin - 1);
    }
  }
  return found;
}

std::vector<std::string> Touches::About(const std::string& text) const {
  std::vector<std::string> subjects = SubjectsIn(text);
  for (const std::string& subject : std::vector<std::string>(subjects)) {
    for (const Touch& touch : touches_.at(subject)) {
      for (std::string& named : SubjectsIn(touch.line)) subjects.push_back(std::move(named));
    }
  }
  std::map<uint64_t, std::string> lines;  // In order, each once.
  for (const std::string& subject : subjects) {
    for (const Touch& touch : touches_.at(subject)) lines[touch.order] = touch.line;
  }
  std::vector<std::string> about;
  for (auto& [order, line] : lines) {
    if (about.empty() || about.back() != line) about.push_back(std::move(line));
  }
  return about;
}

void TouchBy(World& world, int node, const router::Action& action) {
  if (!world.tracing()) return;
  std::visit(
      [&](const auto& act) {
        using T = std::decay_t<decltype(act)>;
        if constexpr (std::is_same_v<T, router::Reserve>) {
          world.Touch(node, {Client(act.call_id), Attempt(act.attempt_id)},
                      absl::StrCat(Client(act.call_id), ": ", Attempt(act.attempt_id),
                                   " reserves at ", act.decode.id));
        } else if constexpr (std::is_same_v<T, router::OpenStream>) {
          world.Touch(node, {Attempt(act.attempt_id), Generation(act.generation)},
                      absl::StrCat(Attempt(act.attempt_id), " opens its stream at ", act.decode.id,
                                   ", ", Generation(act.generation)));
        } else if constexpr (std::is_same_v<T, router::StartPrefill>) {
          world.Touch(node, {Attempt(act.attempt_id)},
                      absl::StrCat(Attempt(act.attempt_id), " starts at ", act.stage0.id));
        } else if constexpr (std::is_same_v<T, router::AbortPrefill> ||
                             std::is_same_v<T, router::AbortDecode>) {
          const char* leg = std::is_same_v<T, router::AbortDecode> ? "decode" : "prefill";
          world.Touch(
              node, {Attempt(act.attempt_id)},
              absl::StrCat(Attempt(act.attempt_id), ": ", leg, " is aborted: ", act.reason));
        } else if constexpr (std::is_same_v<T, router::FinishCall>) {
          world.Touch(node, {Client(act.call_id)},
                      absl::StrCat(Client(act.call_id), " ends after ", act.attempts, " attempts: ",
                                   act.outcome.ok() ? "OK" : act.outcome.status().message()));
        }
      },
      action);
}

void TouchBy(World& world, int node, const prefill::PlannerAction& action) {
  if (!world.tracing()) return;
  if (const auto* issue = std::get_if<prefill::IssuePlan>(&action)) {
    const std::string plan = absl::StrCat("plan ", issue->plan.number);
    for (const auto& open : issue->plan.opens) {
      std::vector<std::string> subjects = {Attempt(open.attempt_id)};
      for (const int page : open.pages) {
        subjects.push_back(absl::StrCat(world.name(node), " page ", page));
      }
      world.Touch(node, subjects,
                  absl::StrCat(plan, " opens ", Attempt(open.attempt_id), " on pages ",
                               absl::StrJoin(open.pages, " ")));
    }
    for (const auto& item : issue->plan.items) {
      world.Touch(
          node, {Attempt(item.attempt_id)},
          absl::StrCat(plan, " has tokens [", item.token_begin, ", ",
                       item.token_begin + item.token_count, ") of ", Attempt(item.attempt_id)));
    }
    for (const uint64_t attempt_id : issue->plan.aborts) {
      world.Touch(node, {Attempt(attempt_id)}, absl::StrCat(plan, " aborts ", Attempt(attempt_id)));
    }
  } else if (const auto* ticket = std::get_if<prefill::HandOutTicket>(&action)) {
    world.Touch(node, {Attempt(ticket->attempt_id), Generation(ticket->ticket.generation)},
                absl::StrCat(Attempt(ticket->attempt_id), " gets slot ", ticket->ticket.slot, ", ",
                             Generation(ticket->ticket.generation)));
  } else if (const auto* grant = std::get_if<prefill::GrantKv>(&action)) {
    std::vector<std::string> subjects = {Generation(grant->grant.generation)};
    for (const int page : grant->grant.pages) {
      subjects.push_back(absl::StrCat(world.name(node), " page ", page));
    }
    world.Touch(node, subjects,
                absl::StrCat("slot ", grant->grant.slot, ", ", Generation(grant->grant.generation),
                             " is granted pages ", absl::StrJoin(grant->grant.pages, " ")));
  } else if (const auto* revoke = std::get_if<prefill::RevokeKv>(&action)) {
    world.Touch(
        node, {Generation(revoke->generation)},
        absl::StrCat("slot ", revoke->slot, ", ", Generation(revoke->generation), " is revoked"));
  } else if (const auto* finish = std::get_if<prefill::FinishRequest>(&action)) {
    world.Touch(node, {Attempt(finish->attempt_id)},
                absl::StrCat(Attempt(finish->attempt_id), " leaves the chain: ",
                             finish->status.ok() ? "OK" : finish->status.message()));
  }
}

}  // namespace baton::sim
