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

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

absl::StatusOr<SplitPattern> SplitPattern::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(Concat("regular expression of ", pattern.size(),
                                             " bytes; at most ", kMaxPatternBytes, " are allowed"));
  }
  BATON_ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  auto code = std::make_unique<Code>();
  code->pcre2.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                                  context.get()));
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
  return SplitPattern(std::move(code));
}

absl::StatusOr<std::vector<std::string_view>> SplitPattern::Split(
    const std::vector<std::string_view>& pieces) const {
  const Matcher matcher(code_->pcre2.get());
  const size_t* match = pcre2_get_ovector_pointer(matcher.data.get());
  std::vector<std::string_view> words;
  for (const std::string_view piece : pieces) {
    size_t done = 0;
    while (done < piece.size()) {
      const int count =
          pcre2_match(code_->pcre2.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(),
                      done, PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
      if (count == PCRE2_ERROR_NOMATCH) break;
      if (count < 0) {
        return absl::ResourceExhaustedError(
            Concat("pre-tokenizer's regular expression failed: ", ErrorText(count)));
      }
      if (match[0] > done) words.push_back(piece.substr(done, match[0] - done));
      words.push_back(piece.substr(match[0], match[1] - match[0]));
      done = match[1];
    }
    if (done < piece.size()) words.push_back(piece.substr(done));
  }
  return words;
}

}  // namespace baton
