#include "common/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "common/grammar/grammar.h"

namespace baton::grammar {
namespace {

// No UTF-8 has these bytes, and the automaton marks special tokens with one of them.
bool IsNoText(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= 0xF8; });
}

}  // namespace

Vocabulary::Vocabulary(const std::vector<VocabularyToken>& tokens) : bytes_(tokens.size()) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const VocabularyToken& token = tokens[id];
    if (token.bytes.empty() || IsNoText(token.bytes)) continue;
    std::string bytes = token.special ? SpecialBytes(token.bytes) : token.bytes;
    if (bytes.size() > kMaxTokenBytes) continue;
    bytes_[id] = std::move(bytes);
    tokens_.push_back(static_cast<int32_t>(id));
  }
  std::sort(tokens_.begin(), tokens_.end(), [this](int32_t a, int32_t b) {
    const int order = BytesOf(a).compare(BytesOf(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<size_t> path;  // Nodes from the root to the last one.
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = BytesOf(tokens_[i]);
    size_t common = 0;
    while (common < std::min(before.size(), bytes.size()) && before[common] == bytes[common]) {
      ++common;
    }
    for (; path.size() > common; path.pop_back()) {
      nodes_[path.back()].behind = static_cast<uint32_t>(nodes_.size());
    }
    for (size_t at = common; at < bytes.size(); ++at) {
      path.push_back(nodes_.size());
      nodes_.push_back({.tokens_begin = static_cast<uint32_t>(i),
                        .depth = static_cast<uint8_t>(at + 1),
                        .byte = static_cast<uint8_t>(bytes[at])});
    }
    Node& node = nodes_[path.back()];
    if (node.tokens_count == 0) node.tokens_begin = static_cast<uint32_t>(i);
    ++node.tokens_count;
    before = bytes;
  }
  for (const size_t node : path) nodes_[node].behind = static_cast<uint32_t>(nodes_.size());
}

}  // namespace baton::grammar
