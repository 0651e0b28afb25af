#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/tokenizer/fuzz/use_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer =
      baton::Tokenizer::LoadFromJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (tokenizer.ok()) baton::UseTokenizer(**tokenizer);
  return 0;
}
