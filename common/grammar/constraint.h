// Which tokens of a vocabulary may come next, given a grammar and the text so far.
//
// For each state of the automaton the tokens are found once that go on from it whatever stands on
// the stack, and the nodes of the trie where the state's rule may end within a token. A mask puts
// these together: from such a node it looks only at tokens that the stack allows. A state of so
// many places that this takes too long is walked through the trie as a whole.
#ifndef COMMON_GRAMMAR_CONSTRAINT_H_
#define COMMON_GRAMMAR_CONSTRAINT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/grammar/automaton.h"
#include "common/grammar/state_table.h"
#include "common/grammar/vocabulary.h"

namespace baton::grammar {

// A bit for each token.
struct TokenMask {
  std::vector<uint64_t> words;
  bool any = false;   // Some token may follow.
  bool ends = false;  // The text may end here.

  bool Allows(int32_t token) const {
    const auto at = static_cast<size_t>(token);
    return at / 64 < words.size() && (words[at / 64] >> (at % 64) & 1) != 0;
  }
};

// Where a text stands. Copied freely; one thread at a time.
class TextState {
 public:
  TextState() = default;

 private:
  friend class Constraint;
  std::shared_ptr<StateTable> table_;
  int32_t state_ = StateTable::kDead;
  int64_t work_left_ = kWork;

  static constexpr int64_t kWork = 1 << 26;
  static constexpr int64_t kTokenWork = 1 << 17;  // More with each token.
};

// A grammar for a vocabulary. Thread-safe. What it keeps is bounded: some 30 MB.
class Constraint {
 public:
  Constraint(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);

  // Finds ahead what masks are made from, until so much has been looked at; the
  // rest is found when it is needed.
  void Prepare(int64_t work = kPreparedWork);

  TextState Begin() const;

  // Appends a token. FAILED_PRECONDITION if the grammar does not allow it there;
  // INVALID_ARGUMENT if the grammar is too ambiguous for the text.
  absl::Status Append(TextState& text, int32_t token) const;
  // The same for bytes that belong to no token.
  absl::Status AppendBytes(TextState& text, std::string_view bytes) const;

  bool CanEnd(const TextState& text) const;

  // INVALID_ARGUMENT as Append, and for a mask that would take more than some 40 ms, since others
  // wait for it, or a text whose masks take more than some 0.7 s and 1.3 ms for each token.
  absl::StatusOr<std::shared_ptr<const TokenMask>> MaskOf(TextState& text) const;

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }

  static constexpr int64_t kPreparedWork = 1 << 20;

 private:
  // What a state of the automaton allows by itself.
  struct Local {
    std::vector<int32_t> tokens;   // Either these,
    std::vector<uint64_t> words;   // or a bit for each.
    std::vector<uint32_t> leaves;  // Nodes, with others behind, where the state's rule may end.
    size_t bytes() const { return 4 * tokens.size() + 8 * words.size() + 4 * leaves.size() + 64; }
  };
  // What any number of characters of a charset allow.
  struct Run {
    std::vector<int32_t> tokens;  // Made of these characters alone; by their number.
    std::vector<size_t> up_to;    // [k]: how many of them begin at most k characters.
    struct Exit {
      uint32_t node = 0;  // The first that is not of them,
      int32_t chars = 0;  // behind so many, at least one.
    };
    std::vector<Exit> exits;
    std::map<int, std::vector<uint64_t>> words;  // By number of characters, the small ones.
  };

  void Renew() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nodes and places looked at since the constraint was made, which is what masks cost.
  int64_t Work() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return visits_ + places_seen_ + table_->places_seen();
  }
  // What is made now would take too long, and is left unfinished.
  bool Spent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Work() > work_limit_; }
  void Adopt(TextState& text) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename OnNode>
  void Visit(uint32_t begin, uint32_t end, int32_t state, const OnNode& on_node) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const Local> LocalOf(Place place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const Local> MakeLocal(StateId state, StackId stack) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Run& RunOf(int32_t run) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRun(Place place, TokenMask& mask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const TokenMask> MakeMask(int32_t state, int64_t begun) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AllowByPlaces(int32_t state, TokenMask& mask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AllowBehind(uint32_t begin, uint32_t end, int32_t state, TokenMask& mask) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t words_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<StateTable> table_ ABSL_GUARDED_BY(mutex_);
  mutable absl::flat_hash_map<int32_t, std::shared_ptr<const TokenMask>> masks_
      ABSL_GUARDED_BY(mutex_);  // By state of table_.
  mutable absl::flat_hash_map<std::pair<StateId, bool>, std::shared_ptr<const Local>> locals_
      ABSL_GUARDED_BY(mutex_);  // Whether the stack is kBottom.
  mutable std::map<int32_t, Run> runs_ ABSL_GUARDED_BY(mutex_);
  mutable size_t local_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t visits_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t places_seen_ ABSL_GUARDED_BY(mutex_) = 0;  // In tables before table_.
  mutable int64_t work_limit_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_CONSTRAINT_H_
