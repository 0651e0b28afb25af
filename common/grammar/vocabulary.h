// The tokens of a model as bytes, in a trie.
#ifndef COMMON_GRAMMAR_VOCABULARY_H_
#define COMMON_GRAMMAR_VOCABULARY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton::grammar {

struct VocabularyToken {
  std::string bytes;     // A special token's spelling. Empty: there is no such token.
  bool special = false;  // It is no text.
};

// Immutable; any thread. About 24 bytes for each byte of the vocabulary.
class Vocabulary {
 public:
  // A node is a beginning of tokens. Nodes stand in the order of a walk through the trie: a node's
  // first child is next to it, and `behind` is the first node that does not go on from it.
  struct Node {
    uint32_t behind = 0;
    uint32_t tokens_begin = 0;
    uint16_t tokens_count = 0;  // Those that are just this.
    uint8_t depth = 0;          // Bytes, from 1; longer tokens are left out.
    uint8_t byte = 0;           // The last one.
  };
  static constexpr size_t kMaxTokenBytes = 255;

  // Tokens by id.
  explicit Vocabulary(const std::vector<VocabularyToken>& tokens);

  size_t size() const { return bytes_.size(); }
  // As the automaton reads it; empty for an id that no text has.
  std::string_view BytesOf(int32_t id) const {
    const auto at = static_cast<size_t>(id);
    return id < 0 || at >= bytes_.size() ? std::string_view() : bytes_[at];
  }
  // Whether a text may have the token; not of special tokens.
  bool IsText(int32_t id) const {
    const std::string_view bytes = BytesOf(id);
    return !bytes.empty() && bytes[0] != '\xFF';
  }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> TokensOf(const Node& node) const {
    return std::span(tokens_).subspan(node.tokens_begin, node.tokens_count);
  }

 private:
  std::vector<std::string> bytes_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // By their bytes.
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_VOCABULARY_H_
