#include "services/baton/node_watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/baton/http_get.h"
#include "services/baton/start_report.h"

namespace baton {
namespace {

constexpr int kAskEveryMs = 100;
// Once all have loaded: other nodes may take hours to come.
constexpr int kAskWaitingEveryMs = 500;

}  // namespace

NodeWatch::NodeWatch(NodeWatchOptions options)
    : options_(std::move(options)), progress_("node starting", "loaded", {options_.group}) {
  thread_ = std::thread([this] { Run(); });
}

NodeWatch::~NodeWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void NodeWatch::OnIncarnation(const std::string& name, uint64_t incarnation) {
  MutexLock lock(&mutex_);
  if (incarnation == 0) {
    listening_.erase(name);
  } else {
    listening_.insert(name);
  }
}

bool NodeWatch::started() const {
  MutexLock lock(&mutex_);
  return started_;
}

bool NodeWatch::ready() const {
  MutexLock lock(&mutex_);
  return ready_;
}

std::string NodeWatch::waiting_for() const {
  MutexLock lock(&mutex_);
  return waiting_for_;
}

std::vector<std::string> NodeWatch::TakeNews() {
  MutexLock lock(&mutex_);
  return std::exchange(news_, {});
}

void NodeWatch::Run() {
  pthread_setname_np(pthread_self(), "baton-watch");
  while (true) {
    Ask();
    MutexLock lock(&mutex_);
    const int pause_ms = started_ ? kAskWaitingEveryMs : kAskEveryMs;
    if (ready_ || stopping_ ||
        mutex_.AwaitFor(std::chrono::milliseconds(pause_ms),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
      return;
    }
  }
}

void NodeWatch::Ask() {
  std::map<std::string, StartState> states;
  std::vector<std::string> missing;
  bool started = true;
  std::set<std::string> listening;
  {
    MutexLock lock(&mutex_);
    listening = listening_;
  }
  for (const auto& [name, port] : options_.ports) {
    absl::StatusOr<HttpAnswer> answer = absl::UnavailableError("it does not listen");
    if (listening.contains(name)) answer = HttpGet({options_.host, port}, "/readiness");
    const std::string said(answer.ok() ? absl::StripAsciiWhitespace(answer->body) : "");
    if (!answer.ok() || said == kLoadingText) {
      states[name] = StartState::kAbsent;
      started = false;
      missing.push_back(absl::StrCat(name, " has not loaded"));
    } else if (answer->status != 200) {
      states[name] = StartState::kHere;
      missing.push_back(absl::StrCat(name, ": ", said));
    } else {
      states[name] = StartState::kReady;
    }
  }
  std::string line = progress_.Note([&](const std::string& name) { return states.at(name); });
  MutexLock lock(&mutex_);
  started_ = started_ || started;
  ready_ = missing.empty();
  waiting_for_ = absl::StrJoin(missing, ", ");
  if (!line.empty()) news_.push_back(std::move(line));
}

}  // namespace baton
