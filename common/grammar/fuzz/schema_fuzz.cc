#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/grammar/fuzz/walk.h"

// What a schema allows is JSON.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using baton::grammar::Source;
  const auto automaton = baton::grammar::CompileAndWalk(
      Source::Kind::kJsonSchema, std::string(reinterpret_cast<const char*>(data), size));
  if (!automaton.has_value()) return 0;
  for (uint64_t seed = 10; seed < 14; ++seed) {
    const auto text = baton::grammar::Walk(*automaton, seed);
    if (!text.has_value()) continue;
    BATON_CHECK(nlohmann::json::accept(*text)) << *text;
  }
  return 0;
}
