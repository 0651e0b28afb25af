// The functions that every template may call: range, dict, namespace, joiner,
// raise_exception and strftime_now.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_FUNCTIONS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_FUNCTIONS_H_

#include <string>

#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// Undefined for a name that is none.
Value FindFunction(const std::string& name);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_FUNCTIONS_H_
