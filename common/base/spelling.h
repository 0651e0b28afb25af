// Which known word a mistyped one may have been meant to be.
#ifndef COMMON_BASE_SPELLING_H_
#define COMMON_BASE_SPELLING_H_

#include <string>
#include <vector>

namespace baton {

// " (did you mean 'page_size'?)" if a candidate resembles `word`, else "". Any thread; the work
// grows with the product of the words' lengths, so bound what comes from outside.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace baton

#endif  // COMMON_BASE_SPELLING_H_
