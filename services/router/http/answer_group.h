// Several calls of the gateway behind one HTTP answer: choices, candidates, lists of prompts. All
// of them end together: the first failure, or the client's leaving, cancels the others.
#ifndef SERVICES_ROUTER_HTTP_ANSWER_GROUP_H_
#define SERVICES_ROUTER_HTTP_ANSWER_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/http/http_handler.h"
#include "common/tracing/tracer.h"
#include "services/router/gateway.h"

namespace baton::router {

// Writes one answer, in tasks of its exchange. Calls are named by their index; one method at a
// time, and nothing after OnAllFinished or OnError.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void OnPromptProgress(size_t /*call*/, PromptProgress /*progress*/) {}
  virtual void OnPromptTokens(size_t call, std::vector<TokenPiece> tokens) = 0;
  virtual void OnTokens(size_t call, TextPiece piece) = 0;
  virtual void OnFinished(size_t call, Outcome outcome) = 0;
  virtual void OnAllFinished() = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// The request ids behind the id of a running answer, for /abort_request. Thread-safe.
class RunningAnswers {
 public:
  // False if another answer has this id: the router then refuses the later one's requests.
  [[nodiscard]] bool Add(const std::string& id, std::vector<std::string> request_ids);
  void Remove(const std::string& id);
  // `id` itself if no answer has it: it may be a request's own.
  std::vector<std::string> RequestsOf(const std::string& id) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::vector<std::string>> answers_ ABSL_GUARDED_BY(mutex_);
};

// Lives as long as one of its calls does. The router's thread only passes on what its sinks hear:
// JSON is made where the client's bytes are written.
class AnswerGroup : public std::enable_shared_from_this<AnswerGroup> {
 public:
  // Submits all of `calls`, which have request ids of their own; `id` names them together. A
  // refusal is the writer's OnError. With `stream` the writer hears of each token at once, else of
  // several together. `span`, if it is one, is the calls' parent and ends with the group. `gateway`
  // outlives all answers.
  static void Start(Gateway& gateway, std::shared_ptr<RunningAnswers> running,
                    const std::string& id, std::vector<GenerateCall> calls,
                    std::unique_ptr<AnswerWriter> writer, bool stream,
                    const std::shared_ptr<HttpExchange>& exchange, tracing::ActiveSpan span);
  ~AnswerGroup();
  AnswerGroup(const AnswerGroup&) = delete;
  AnswerGroup& operator=(const AnswerGroup&) = delete;

 private:
  class Sink;
  AnswerGroup(Gateway& gateway, std::shared_ptr<RunningAnswers> running, std::string id,
              size_t calls, std::unique_ptr<AnswerWriter> writer,
              std::shared_ptr<HttpExchange> exchange, tracing::ActiveSpan span);

  void Submit(std::vector<GenerateCall> calls, bool stream);
  void Cancel();
  bool ended() const;
  // Ends the group; false if it has ended before.
  bool End(const absl::Status& status);
  // Has `write(*this)` run where the writer writes, unless the group has ended by then.
  template <typename Write>
  void WriteUnlessEnded(Write write);
  void OnFinished(size_t call, Outcome outcome);
  void OnError(const absl::Status& status);

  Gateway& gateway_;
  const std::shared_ptr<RunningAnswers> running_;
  const std::string id_;  // Its id in `running_`; empty if another answer has it.

  const std::shared_ptr<HttpExchange> exchange_;
  // In tasks of the exchange: sinks are called on the router's thread, refusals come on the
  // front's.
  const std::unique_ptr<AnswerWriter> writer_;
  size_t unfinished_;

  mutable Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> call_ids_ ABSL_GUARDED_BY(mutex_);
  tracing::ActiveSpan span_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_ANSWER_GROUP_H_
