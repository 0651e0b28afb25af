// Between the two string_views: Debian 12's Abseil was built with a string_view of its own and
// refuses std::string_view; in later builds the two are one type. Code of Baton uses
// std::string_view and comes through here where it hands one to Abseil.
#ifndef COMMON_BASE_STRINGS_H_
#define COMMON_BASE_STRINGS_H_

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

namespace internal {

template <typename T>
decltype(auto) ForAbsl(const T& part) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(part);
  } else {
    return (part);
  }
}

}  // namespace internal

// absl::StrCat for parts that may also be std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return absl::StrCat(internal::ForAbsl(parts)...);
}

// Which known word a mistyped one may have been meant to be.

// " (did you mean 'page_size'?)" if a candidate resembles `word`, else "". Any thread; the work
// grows with the product of the words' lengths, so bound what comes from outside.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace baton

#endif  // COMMON_BASE_STRINGS_H_
