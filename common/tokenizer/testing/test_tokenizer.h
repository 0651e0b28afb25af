// Tokenizers for tests: every byte, a few merges, the special tokens of both chat formats.
#ifndef COMMON_TOKENIZER_TESTING_TEST_TOKENIZER_H_
#define COMMON_TOKENIZER_TESTING_TEST_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/tokenizer/tokenizer.h"

namespace baton {

// Ids of a single byte are the byte's value. Merges, in this order: "l l" (256), "h e" (257),
// "he ll" (258), "hell o" (259). Then come kSpecialTokens from 260 on, and the non-special added
// token "<think>".
nlohmann::json TestTokenizerJson();

inline constexpr const char* kSpecialTokens[] = {
    "<|endoftext|>",       "<|im_start|>",      "<|im_end|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
};

// Loads `json`, which must be right.
std::unique_ptr<Tokenizer> MakeTestTokenizer(const nlohmann::json& json = TestTokenizerJson(),
                                             const TokenRoles& roles = {});

}  // namespace baton

#endif  // COMMON_TOKENIZER_TESTING_TEST_TOKENIZER_H_
