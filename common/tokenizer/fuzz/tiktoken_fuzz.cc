#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/tokenizer/fuzz/use_tokenizer.h"

// The file, and behind a zero byte tokenizer_config.json.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const auto tokenizer = baton::Tokenizer::LoadFromTiktoken(input.substr(0, zero),
                                                            input.substr(std::min(zero + 1, size)));
  if (tokenizer.ok()) baton::UseTokenizer(**tokenizer);
  return 0;
}
