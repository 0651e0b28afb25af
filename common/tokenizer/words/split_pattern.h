// The regular expressions with which pre-tokenizers cut text into words. tokenizer.json writes them
// for Oniguruma; here PCRE2 runs them, because RE2 lacks look-ahead and Oniguruma has no Debian
// package with a stable interface for UTF-8 search under limits. The two engines read some syntax
// differently, so a pattern is translated construct by construct, and one that isn't known to mean
// the same in both is refused.
#ifndef COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_
#define COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// The PCRE2 pattern that matches what `pattern` does in Oniguruma. Unimplemented, with the
// construct and its byte offset, for syntax outside the common subset.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

// What becomes of the matches and of the gaps between them, in tokenizer.json's words.
enum class SplitBehavior {
  kIsolated,            // Both are pieces.
  kRemoved,             // Gaps are pieces; matches are dropped.
  kMergedWithPrevious,  // A match is the end of the gap before it,
  kMergedWithNext,      // or the beginning of the gap after it.
  kContiguous,          // Matches that touch are one piece.
};

struct SplitRule {
  enum class Syntax {
    kOniguruma,  // The dialect of tokenizer.json.
    kLiteral,    // The text itself.
    kPcre2,      // The dialect of this code.
  };
  std::string pattern;
  Syntax syntax = Syntax::kOniguruma;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // Matches count as gaps and gaps as matches.
};

// One compiled rule. Thread-safe once made.
class SplitPattern {
 public:
  // Unimplemented for syntax that TranslatePattern refuses, InvalidArgument for a broken pattern or
  // one that can match the empty string.
  static absl::StatusOr<SplitPattern> Compile(const SplitRule& rule);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Cuts each of `pieces` (well-formed UTF-8) at the borders of the pattern's matches, as the rule
  // says. The views point into the same text.
  // ResourceExhausted if the pattern backtracks beyond its limits.
  absl::StatusOr<std::vector<std::string_view>> Split(
      const std::vector<std::string_view>& pieces) const;

  // `text` with `content` in the place of every match. ResourceExhausted as Split, or if the result
  // is larger than `max_bytes`.
  absl::StatusOr<std::string> Replace(std::string_view text, std::string_view content,
                                      size_t max_bytes) const;

 private:
  struct Code;
  SplitPattern(std::unique_ptr<Code> code, SplitBehavior behavior, bool invert);

  // Calls visit(part, is_match) for the matches and gaps of `piece`, none of them empty, in order.
  template <typename Matcher, typename Visit>
  absl::Status ForEachPart(const Matcher& matcher, std::string_view piece,
                           const Visit& visit) const;

  std::unique_ptr<Code> code_;
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_
