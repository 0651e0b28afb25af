#include "common/collective/gloo/rank_process.h"

#include <signal.h>

#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::testing {
namespace {

constexpr char kTestRank[] = "common/collective/gloo/test_rank";

}  // namespace

RankProcess::RankProcess(const Options& options, LocalWiring* wiring)
    : options_(options),
      wiring_(wiring),
      child_({kTestRank, absl::StrCat(options.rank), absl::StrCat(options.size),
              absl::StrCat(options.operation_timeout_ms), absl::StrCat(options.form_timeout_ms)}) {
  const Rendezvous::Join join = {.epoch = 7,
                                 .rank = options.rank,
                                 .size = options.size,
                                 .member = absl::StrCat("m", options.rank),
                                 .incarnation = 1};
  wiring_->Join(static_cast<Rendezvous::Caller>(options.rank), join,
                [this](const Rendezvous::Message& message) {
                  if (!message.entry) return;
                  Say(absl::StrCat("put ", absl::BytesToHexString(message.entry->key), " ",
                                   absl::BytesToHexString(message.entry->value)));
                });
  reader_ = std::thread([this] { Read(); });
}

RankProcess::~RankProcess() {
  Signal(SIGKILL);
  reader_.join();  // At the end of its stdout.
}

void RankProcess::Say(const std::string& line) {
  MutexLock lock(&write_mutex_);
  child_.WriteLine(line);
}

void RankProcess::Read() {
  std::string line;
  while (child_.ReadLineOrEnd(&line)) Hear(line);
  MutexLock lock(&mutex_);
  over_ = true;
}

void RankProcess::Hear(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "set") {
    std::string key;
    std::string value;
    words >> key >> value;
    return wiring_->Set(static_cast<Rendezvous::Caller>(options_.rank), absl::HexStringToBytes(key),
                        absl::HexStringToBytes(value));
  }
  MutexLock lock(&mutex_);
  const std::string rest = line.substr(std::min(line.size(), verb.size() + 1));
  if (verb == "formed" || verb == "failed") {
    decided_ = true;
    if (verb == "failed") formed_ = OutcomeFromText(rest).status;
    return;
  }
  answers_.push_back(rest);
}

absl::Status RankProcess::AwaitFormed() {
  absl::Status formed;
  {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return decided_ || over_; });
    formed = decided_ ? formed_ : absl::UnavailableError("the process has ended");
  }
  if (formed.ok()) Say("start");
  return formed;
}

std::string RankProcess::Next() {
  MutexLock lock(&mutex_);
  mutex_.Await([this]()
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !answers_.empty() || over_; });
  BATON_CHECK(!answers_.empty()) << "rank " << options_.rank << " has ended without an answer";
  std::string answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

}  // namespace baton::testing
