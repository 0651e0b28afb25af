#include "common/tokenizer/words/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <cstdint>

#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

const icu::Normalizer2* InstanceOf(NormalForm form, UErrorCode& error) {
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::string> ToNormalForm(NormalForm form, std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = InstanceOf(form, error);
  std::string normalized;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&normalized, static_cast<int32_t>(text.size()));
    normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                              sink, nullptr, error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(Concat("normalization failed: ", u_errorName(error)));
  }
  return normalized;
}

std::string ToLowercase(std::string_view text) {
  constexpr char32_t kDottedCapitalI = 0x130;  // The only one whose lower case is two characters.
  std::string lower;
  lower.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.code_point == kDottedCapitalI) {
      lower += "i\xCC\x87";
    } else {
      AppendCodePoint(static_cast<char32_t>(u_tolower(static_cast<UChar32>(step.code_point))),
                      &lower);
    }
    text.remove_prefix(step.length);
  }
  return lower;
}

std::string WithoutMarks(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if ((U_GET_GC_MASK(static_cast<UChar32>(step.code_point)) & U_GC_M_MASK) == 0) {
      kept.append(text.substr(0, step.length));
    }
    text.remove_prefix(step.length);
  }
  return kept;
}

bool IsWhiteSpace(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)); }

bool IsWordCharacter(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & kCategories) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

}  // namespace baton
