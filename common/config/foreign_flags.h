// Flags that users of SGLang and vLLM know and Baton does not take: what does the same here, or
// that nothing does. Names that mean the same are not here but aliases in
// proto/baton/v1/config.proto.
#ifndef COMMON_CONFIG_FOREIGN_FLAGS_H_
#define COMMON_CONFIG_FOREIGN_FLAGS_H_

#include <string>
#include <vector>

namespace baton::config {

// A sentence about `flag` (without dashes) for a message; empty if neither server knows it.
std::string ForeignFlagAdvice(const std::string& flag);

// All names, "abc*" for all that start with abc: for tests.
std::vector<std::string> ForeignFlagNames();

}  // namespace baton::config

#endif  // COMMON_CONFIG_FOREIGN_FLAGS_H_
