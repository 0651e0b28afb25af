#include "services/baton/start_watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {

std::string StartProgress::Note(const std::map<std::string, StartState>& states) {
  std::vector<std::string> counts;
  counts.reserve(subject_.groups.size());
  bool anybody = !said_.empty();
  for (const StartingGroup& group : subject_.groups) {
    int here = 0;
    int ready = 0;
    for (const std::string& name : group.names) {
      const auto state = states.find(name);
      if (state == states.end() || state->second == StartState::kAbsent) continue;
      ++here;
      if (state->second == StartState::kReady) ++ready;
    }
    anybody = anybody || here > 0;
    counts.push_back(
        absl::StrCat(group.name, ": ", ready, " of ", group.names.size(), " ", group.unit, " ready",
                     here > ready ? absl::StrCat(", ", here, " ", subject_.here) : ""));
  }
  std::string line = absl::StrCat(subject_.begin, ": ", absl::StrJoin(counts, "; "));
  if (!anybody || line == said_) return "";
  said_ = line;
  return line;
}

StartWatch::StartWatch(StartSubject subject, LookAtStart look,
                       std::function<std::string(const StartView& ready)> ready_text)
    : look_(std::move(look)),
      progress_(std::move(subject)),
      ready_text_(std::move(ready_text)),
      thread_([this] { Run(); }) {}

StartWatch::~StartWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

SupervisorWatch StartWatch::ForSupervisor() {
  return {[this] {
            MutexLock lock(&mutex_);
            StartNews news = news_;
            news_.lines.clear();
            return news;
          },
          [this](const std::string& name, uint64_t incarnation) {
            MutexLock lock(&mutex_);
            if (incarnation == 0) {
              listening_.erase(name);
            } else {
              listening_[name] = incarnation;
            }
          }};
}

void StartWatch::Run() {
  pthread_setname_np(pthread_self(), "baton-watch");
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (true) {
    Incarnations listening;
    {
      MutexLock lock(&mutex_);
      listening = listening_;
    }
    const StartView view = look_(listening);
    Take(view);
    MutexLock lock(&mutex_);
    if (view.missing.empty() || stopping_ ||
        mutex_.AwaitFor(std::chrono::milliseconds(view.look_again_ms), stopping)) {
      break;
    }
  }
  // An unused connection of it would keep a router from ending at once.
  look_ = nullptr;
}

void StartWatch::Take(const StartView& view) {
  std::vector<std::string> lines;
  if (view.known) {
    if (std::string line = progress_.Note(view.states); !line.empty()) {
      lines.push_back(std::move(line));
    }
  }
  if (view.missing.empty()) lines.push_back(ready_text_(view));
  MutexLock lock(&mutex_);
  news_.started = news_.started || view.started;
  news_.waiting_for = absl::StrJoin(view.missing, ", ");
  for (std::string& line : lines) news_.lines.push_back(std::move(line));
}

}  // namespace baton
