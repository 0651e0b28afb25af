// How large a grammar becomes, told before it is built.
#ifndef COMMON_GRAMMAR_GRAMMAR_SIZE_H_
#define COMMON_GRAMMAR_GRAMMAR_SIZE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// For a grammar that does not change meanwhile.
class GrammarSize {
 public:
  explicit GrammarSize(const Grammar& grammar)
      : grammar_(grammar), rules_(grammar.rules().size(), kUnknown) {}

  // INVALID_ARGUMENT if counts within counts stand for more than could be written out.
  absl::Status CheckCounts() const;

  // The states of a rule's body or of a node, roughly, with those of small rules that it calls.
  size_t OfRule(int rule, int depth = 0);
  size_t OfNode(Grammar::NodeId id, int depth = 0);

 private:
  static constexpr size_t kUnknown = ~size_t{0};

  uint64_t Expanded(Grammar::NodeId id) const;

  const Grammar& grammar_;
  std::vector<size_t> rules_;
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_GRAMMAR_SIZE_H_
