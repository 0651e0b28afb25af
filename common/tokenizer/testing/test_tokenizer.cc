#include "common/tokenizer/testing/test_tokenizer.h"

#include <utility>

#include "common/base/check.h"
#include "common/tokenizer/bpe/bpe.h"

namespace baton {

nlohmann::json TestTokenizerJson() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[SpellByte(static_cast<uint8_t>(byte))] = byte;
  for (const char* merged : {"ll", "he", "hell", "hello"}) vocab[merged] = vocab.size();
  nlohmann::json added = nlohmann::json::array();
  const auto add = [&](const char* content, bool special) {
    added.push_back({{"id", vocab.size() + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  for (const char* token : kSpecialTokens) add(token, true);
  add("<think>", false);
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", std::move(vocab)},
        {"merges", {"l l", "h e", "he ll", "hell o"}}}},
  };
}

std::unique_ptr<Tokenizer> MakeTestTokenizer(const nlohmann::json& json, const TokenRoles& roles) {
  auto tokenizer = Tokenizer::LoadFromJson(json.dump(), roles);
  BATON_CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

}  // namespace baton
