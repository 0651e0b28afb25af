#include <cstddef>
#include <cstdint>
#include <string>

#include "common/grammar/fuzz/walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using baton::grammar::Source;
  baton::grammar::CompileAndWalk(Source::Kind::kEbnf,
                                 std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
