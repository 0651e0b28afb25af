#include "common/tokenizer/words/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr size_t kMaxPatternBytes = 4096;

// Per match. A run of a million spaces costs one step each; exponential patterns cost more.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackMinBytes = 32 << 10;
constexpr size_t kJitStackMaxBytes = 1 << 20;

std::string ErrorText(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// What one thread needs to run a pattern.
struct Matcher {
  explicit Matcher(const pcre2_code* code)
      : jit_stack(pcre2_jit_stack_create(kJitStackMinBytes, kJitStackMaxBytes, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create_from_pattern(code, nullptr)) {
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, jit_stack.get());
  }

  Owned<pcre2_jit_stack> jit_stack;
  Owned<pcre2_match_context> context;
  Owned<pcre2_match_data> data;
};

}  // namespace

struct SplitPattern::Code {
  Owned<pcre2_code> pcre2;
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code, SplitBehavior behavior, bool invert)
    : code_(std::move(code)), behavior_(behavior), invert_(invert) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

absl::StatusOr<SplitPattern> SplitPattern::Compile(const SplitRule& rule) {
  const std::string& pattern = rule.pattern;
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(Concat("regular expression of ", pattern.size(),
                                             " bytes; at most ", kMaxPatternBytes, " are allowed"));
  }
  std::string translated = pattern;
  if (rule.syntax == SplitRule::Syntax::kOniguruma) {
    BATON_ASSIGN_OR_RETURN(translated, TranslatePattern(pattern));
  }
  const bool literal = rule.syntax == SplitRule::Syntax::kLiteral;
  Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  auto code = std::make_unique<Code>();
  code->pcre2.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP), &error, &offset, context.get()));
  if (code->pcre2 == nullptr) {
    return absl::InvalidArgumentError(
        Concat("regular expression \"", pattern, "\": ", ErrorText(error)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code->pcre2.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError(
        Concat("regular expression \"", pattern, "\" can match the empty string"));
  }
  // Without JIT support the interpreter runs the pattern: slower, with the same matches.
  pcre2_jit_compile(code->pcre2.get(), PCRE2_JIT_COMPLETE);
  return SplitPattern(std::move(code), rule.behavior, rule.invert);
}

template <typename Matcher, typename Visit>
absl::Status SplitPattern::ForEachPart(const Matcher& matcher, std::string_view piece,
                                       const Visit& visit) const {
  const size_t* match = pcre2_get_ovector_pointer(matcher.data.get());
  size_t done = 0;
  while (done < piece.size()) {
    const int count =
        pcre2_match(code_->pcre2.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(),
                    done, PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return absl::ResourceExhaustedError(
          Concat("a regular expression of tokenizer.json failed: ", ErrorText(count)));
    }
    if (match[0] > done) visit(piece.substr(done, match[0] - done), /*is_match=*/false);
    visit(piece.substr(match[0], match[1] - match[0]), /*is_match=*/true);
    done = match[1];
  }
  if (done < piece.size()) visit(piece.substr(done), /*is_match=*/false);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string_view>> SplitPattern::Split(
    const std::vector<std::string_view>& pieces) const {
  const Matcher matcher(code_->pcre2.get());
  std::vector<std::string_view> words;
  for (const std::string_view piece : pieces) {
    bool first = true;
    bool match_before = false;
    const auto add = [&](std::string_view part, bool is_match) {
      is_match = is_match != invert_;
      const bool joins =
          !first &&
          ((behavior_ == SplitBehavior::kMergedWithPrevious && is_match && !match_before) ||
           (behavior_ == SplitBehavior::kMergedWithNext && !is_match && match_before) ||
           (behavior_ == SplitBehavior::kContiguous && is_match == match_before));
      if (joins) {
        std::string_view& last = words.back();
        last = std::string_view(last.data(), last.size() + part.size());
      } else if (!is_match || behavior_ != SplitBehavior::kRemoved) {
        words.push_back(part);
      }
      first = false;
      match_before = is_match;
    };
    BATON_RETURN_IF_ERROR(ForEachPart(matcher, piece, add));
  }
  return words;
}

absl::StatusOr<std::string> SplitPattern::Replace(std::string_view text, std::string_view content,
                                                  size_t max_bytes) const {
  const Matcher matcher(code_->pcre2.get());
  std::string replaced;
  bool too_long = false;
  const auto add = [&](std::string_view part, bool is_match) {
    const std::string_view put = is_match ? content : part;
    too_long = too_long || put.size() > max_bytes - replaced.size();
    if (!too_long) replaced.append(put);
  };
  BATON_RETURN_IF_ERROR(ForEachPart(matcher, text, add));
  if (!too_long) return replaced;
  return absl::ResourceExhaustedError(
      Concat("the normalized text is larger than ", max_bytes, " bytes"));
}

}  // namespace baton
