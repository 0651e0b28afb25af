#include "services/router/http/answer_group.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace baton::router {

bool RunningAnswers::Add(const std::string& id, std::vector<std::string> request_ids) {
  MutexLock lock(&mutex_);
  return answers_.emplace(id, std::move(request_ids)).second;
}

void RunningAnswers::Remove(const std::string& id) {
  MutexLock lock(&mutex_);
  answers_.erase(id);
}

std::vector<std::string> RunningAnswers::RequestsOf(const std::string& id) const {
  MutexLock lock(&mutex_);
  const auto entry = answers_.find(id);
  return entry == answers_.end() ? std::vector<std::string>{id} : entry->second;
}

namespace {

// Decode steps that the writer of a whole answer hears of together.
constexpr size_t kWholeSteps = 32;

}  // namespace

// One call's share.
class AnswerGroup::Sink : public ResponseSink {
 public:
  // Tells of `steps` tokens at a time.
  Sink(std::shared_ptr<AnswerGroup> group, size_t call, size_t steps)
      : group_(std::move(group)), call_(call), steps_(steps) {}

  void OnPromptProgress(PromptProgress progress) override {
    group_->WriteUnlessEnded([call = call_, progress](AnswerGroup& group) {
      group.writer_->OnPromptProgress(call, progress);
    });
  }
  void OnPromptTokens(std::vector<TokenPiece> tokens) override {
    group_->WriteUnlessEnded(
        [call = call_, tokens = std::move(tokens)](AnswerGroup& group) mutable {
          group.writer_->OnPromptTokens(call, std::move(tokens));
        });
  }
  void OnTokens(TextPiece piece) override {
    pieces_.push_back(std::move(piece));
    if (pieces_.size() >= steps_) Flush();
  }
  void OnFinished(Outcome outcome) override {
    if (!pieces_.empty()) Flush();
    group_->OnFinished(call_, std::move(outcome));
  }
  void OnError(absl::Status status) override { group_->OnError(status); }

 private:
  void Flush() {
    group_->WriteUnlessEnded(
        [call = call_, pieces = std::exchange(pieces_, {})](AnswerGroup& group) mutable {
          for (TextPiece& piece : pieces) group.writer_->OnTokens(call, std::move(piece));
        });
  }

  const std::shared_ptr<AnswerGroup> group_;
  const size_t call_;
  const size_t steps_;
  std::vector<TextPiece> pieces_;  // From steps that are not told yet.
};

AnswerGroup::AnswerGroup(Gateway& gateway, std::shared_ptr<RunningAnswers> running, std::string id,
                         size_t calls, std::unique_ptr<AnswerWriter> writer,
                         std::shared_ptr<HttpExchange> exchange, tracing::ActiveSpan span)
    : gateway_(gateway),
      running_(std::move(running)),
      id_(std::move(id)),
      exchange_(std::move(exchange)),
      writer_(std::move(writer)),
      unfinished_(calls),
      span_(std::move(span)) {}

AnswerGroup::~AnswerGroup() {
  if (!id_.empty()) running_->Remove(id_);
}

void AnswerGroup::Start(Gateway& gateway, std::shared_ptr<RunningAnswers> running,
                        const std::string& id, std::vector<GenerateCall> calls,
                        std::unique_ptr<AnswerWriter> writer, bool stream,
                        const std::shared_ptr<HttpExchange>& exchange, tracing::ActiveSpan span) {
  std::vector<std::string> ids;
  ids.reserve(calls.size());
  for (const GenerateCall& call : calls) ids.push_back(call.request_id);
  const bool added = running->Add(id, std::move(ids));
  const std::shared_ptr<AnswerGroup> group(
      new AnswerGroup(gateway, std::move(running), added ? id : "", calls.size(), std::move(writer),
                      exchange, std::move(span)));
  group->Submit(std::move(calls), stream);
  // The sinks keep the group; the exchange, which it keeps, must not.
  exchange->OnDisconnect([weak = std::weak_ptr<AnswerGroup>(group)] {
    if (const auto left = weak.lock()) left->Cancel();
  });
}

void AnswerGroup::Submit(std::vector<GenerateCall> calls, bool stream) {
  for (size_t i = 0; i < calls.size() && !ended(); ++i) {
    const absl::StatusOr<Submitted> submitted =
        gateway_.Submit(std::move(calls[i]),
                        std::make_shared<Sink>(shared_from_this(), i, stream ? 1 : kWholeSteps));
    if (!submitted.ok()) return OnError(submitted.status());
    bool too_late = false;
    {
      MutexLock lock(&mutex_);
      too_late = ended_;
      call_ids_.push_back(submitted->call_id);
    }
    if (too_late) gateway_.Cancel(submitted->call_id);
  }
}

bool AnswerGroup::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

bool AnswerGroup::End(const absl::Status& status) {
  MutexLock lock(&mutex_);
  span_.End(NowUs(), status);
  return !std::exchange(ended_, true);
}

void AnswerGroup::Cancel() {
  std::vector<uint64_t> call_ids;
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    call_ids = call_ids_;
    span_.End(NowUs(), absl::CancelledError("the client went away"));
  }
  for (const uint64_t call : call_ids) gateway_.Cancel(call);
}

template <typename Write>
void AnswerGroup::WriteUnlessEnded(Write write) {
  exchange_->Run([self = shared_from_this(), write = std::move(write)]() mutable {
    if (!self->ended()) write(*self);
  });
}

void AnswerGroup::OnFinished(size_t call, Outcome outcome) {
  WriteUnlessEnded([call, outcome = std::move(outcome)](AnswerGroup& group) mutable {
    group.writer_->OnFinished(call, std::move(outcome));
    if (--group.unfinished_ > 0 || !group.End(absl::OkStatus())) return;
    group.writer_->OnAllFinished();
  });
}

void AnswerGroup::OnError(const absl::Status& status) {
  exchange_->Run([self = shared_from_this(), status] {
    if (!self->End(status)) return;
    self->writer_->OnError(status);
    self->Cancel();
  });
}

}  // namespace baton::router
