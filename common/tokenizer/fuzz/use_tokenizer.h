// Does what a server does with a tokenizer that could be loaded, for the fuzz targets.
#ifndef COMMON_TOKENIZER_FUZZ_USE_TOKENIZER_H_
#define COMMON_TOKENIZER_FUZZ_USE_TOKENIZER_H_

#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

// Every id that comes out has a token, and its text is UTF-8, whatever the file says.
inline void UseTokenizer(const Tokenizer& tokenizer) {
  const std::string texts[] = {"",
                               " ",
                               "Hello  world",
                               "a\n\tb\r\n",
                               "äöü 早晨 😀 e\u0301",
                               "<s>[INST]<|im_end|></s>",
                               std::string(300, 'a')};
  for (const std::string& text : texts) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer.Encode(text, special, special);
      if (!ids.ok()) continue;
      for (const int32_t id : *ids) BATON_CHECK(tokenizer.HasToken(id)) << id;
      const auto decoded = tokenizer.Decode(*ids, special);
      BATON_CHECK(decoded.ok()) << decoded.status();
    }
  }
}

}  // namespace baton

#endif  // COMMON_TOKENIZER_FUZZ_USE_TOKENIZER_H_
