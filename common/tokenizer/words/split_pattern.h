// The regular expressions with which pre-tokenizers cut text into words. tokenizer.json writes them
// for Oniguruma; here PCRE2 runs them, because RE2 lacks look-ahead and Oniguruma has no Debian
// package with a stable interface for UTF-8 search under limits. The two engines read some syntax
// differently, so a pattern is translated construct by construct, and one that isn't known to mean
// the same in both is refused.
#ifndef COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_
#define COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_

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

// One compiled pattern. Thread-safe once made.
class SplitPattern {
 public:
  // Unimplemented for syntax that TranslatePattern refuses, InvalidArgument for a broken pattern or
  // one that can match the empty string.
  static absl::StatusOr<SplitPattern> Compile(std::string_view pattern);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Cuts each of `pieces` (well-formed UTF-8) at the borders of the pattern's matches; matches and
  // the gaps between them both become pieces. The views point into the same text.
  // ResourceExhausted if the pattern backtracks beyond its limits.
  absl::StatusOr<std::vector<std::string_view>> Split(
      const std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_SPLIT_PATTERN_H_
