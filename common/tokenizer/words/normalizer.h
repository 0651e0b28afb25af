// What tokenizer.json's normalizer does to a text before it is cut into words.
#ifndef COMMON_TOKENIZER_WORDS_NORMALIZER_H_
#define COMMON_TOKENIZER_WORDS_NORMALIZER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/words/charsmap.h"
#include "common/tokenizer/words/split_pattern.h"

namespace baton {

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,     // Character by character, without regard to language or place.
    kStripAccents,  // Drops combining marks.
    kStrip,         // White space at the ends.
    kPrepend,       // `content`, unless the text is empty.
    kReplace,       // Matches of `pattern` by `content`.
    kCharsmap,      // By the table that is `content` (charsmap.h).
  };
  Kind kind = Kind::kNfc;
  bool left = false;  // For kStrip.
  bool right = false;
  std::string content;
  SplitRule pattern;
};

// Immutable; any thread.
class Normalizer {
 public:
  // Errors as SplitPattern::Compile's.
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }

  // `text` must be well-formed. ResourceExhausted if a step makes more than `max_bytes` of it, or
  // if a pattern backtracks beyond its limits.
  absl::StatusOr<std::string> Apply(std::string_view text, size_t max_bytes) const;

 private:
  struct Step {
    NormalizerStep what;
    std::optional<SplitPattern> pattern;
    std::optional<Charsmap> charsmap;
  };
  Normalizer() = default;

  static absl::StatusOr<std::string> ApplyStep(const Step& step, std::string text,
                                               size_t max_bytes);

  std::vector<Step> steps_;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_NORMALIZER_H_
