// What v1::TextStructure asks of texts, compiled for this process's vocabulary: on a thread of its
// own, once for all requests that ask for the same.
#ifndef COMMON_ENGINE_SAMPLING_CONSTRAINTS_H_
#define COMMON_ENGINE_SAMPLING_CONSTRAINTS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/grammar/compile.h"
#include "common/grammar/constraint.h"
#include "proto/baton/v1/common.pb.h"

namespace baton {

// The source of a structure. INVALID_ARGUMENT without a kind unless it bounds reasoning, with half
// of the marks, or with a bound that is negative or lacks them.
absl::StatusOr<grammar::Source> SourceOf(const v1::TextStructure& structure);

// What a text is kept to.
struct TextRules {
  std::shared_ptr<const grammar::Constraint> text;  // Null: it may be anything.
  // From where reasoning is ended, which its marks tell; null: it never is.
  std::shared_ptr<const grammar::Constraint> closing;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  grammar::Source source;
};

// Rules that may not be compiled yet. Thread-safe.
class PendingConstraint {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const TextRules>>;

  bool ready() const;  // Await returns at once.
  // Waits until it is compiled: milliseconds, while the prompt is being read.
  Result Await() const;
  // Once.
  void Set(Result result);

 private:
  mutable Mutex mutex_;
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
  Result result_ = absl::UnknownError("");
};

// Thread-safe.
class Constraints {
 public:
  using Vocabulary = std::shared_ptr<const grammar::Vocabulary>;

  // `load` is called once, on the compiling thread, at once.
  explicit Constraints(std::function<absl::StatusOr<Vocabulary>()> load);
  ~Constraints();  // What waits to be compiled is cancelled.
  Constraints(const Constraints&) = delete;
  Constraints& operator=(const Constraints&) = delete;

  // Returns at once. Structures that differ in how much reasoning they allow share their rules.
  // RESOURCE_EXHAUSTED while too many wait to be compiled; else as SourceOf.
  absl::StatusOr<std::shared_ptr<const PendingConstraint>> Find(const v1::TextStructure& structure);

  static constexpr size_t kMaxKept = 32;  // And those that requests use.
  static constexpr size_t kMaxWaiting = 256;

 private:
  struct Job {
    grammar::Source source;
    bool closes = false;
    std::shared_ptr<PendingConstraint> result;
  };
  struct Kept {
    std::string key;
    std::shared_ptr<PendingConstraint> constraint;
  };

  void Run();
  void DropUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PendingConstraint::Result Compile(const Job& job);

  const std::function<absl::StatusOr<Vocabulary>()> load_;
  absl::StatusOr<Vocabulary> vocabulary_ = Vocabulary();  // The thread's.
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // The latest used first.
  std::unordered_map<std::string, std::list<Kept>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last.
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_CONSTRAINTS_H_
