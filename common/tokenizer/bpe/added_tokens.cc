#include "common/tokenizer/bpe/added_tokens.h"

#include <algorithm>

#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

bool TouchesWord(std::string_view before, std::string_view after) {
  if (!before.empty() &&
      IsWordCharacter(NextUtf8(before.substr(LastCharacter(before))).code_point)) {
    return true;
  }
  return !after.empty() && IsWordCharacter(NextUtf8(after).code_point);
}

// How much of bytes [begin, end) is in `ranges`.
enum class Share { kNone, kSome, kAll };

Share ShareOf(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const std::span<const ByteRange> after = RangesAfter(ranges, begin);
  if (after.empty() || after.front().begin >= end) return Share::kNone;
  return after.front().begin <= begin && after.front().end >= end ? Share::kAll : Share::kSome;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [edge, inserted] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(token_of_node_.size()));
    if (inserted) token_of_node_.push_back(-1);
    node = edge->second;
  }
  if (token_of_node_[node] >= 0) return;
  token_of_node_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  starts_token_[static_cast<uint8_t>(token.content.front())] = true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::MatchAt(
    std::string_view text, size_t begin, bool parse_special,
    std::span<const ByteRange> plain) const {
  std::optional<Match> longest;
  std::optional<Match> refused;
  uint32_t node = 0;
  for (size_t end = begin; end < text.size(); ++end) {
    const auto edge = edges_.find(EdgeKey(node, text[end]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_of_node_[node] < 0) continue;
    const AddedToken& token = tokens_[token_of_node_[node]];
    if (!token.special) {
      longest = Match{begin, end + 1, &token};
      continue;
    }
    const Share share = ShareOf(plain, begin, end + 1);
    if (!parse_special || share == Share::kAll) {
      // Text that is plain from end to end is passed as a whole, as Hugging Face's library does.
      longest = Match{begin, end + 1, nullptr};
    } else if (share == Share::kNone) {
      longest = Match{begin, end + 1, &token};
    } else {
      // Made of both: a token that the rest of the template is part of may begin within.
      refused = Match{begin, begin + 1, nullptr};
    }
  }
  return longest.has_value() ? longest : refused;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::NextMatch(
    std::string_view text, size_t from, bool parse_special,
    std::span<const ByteRange> plain) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_token_[static_cast<uint8_t>(text[begin])]) continue;
    if (const auto match = MatchAt(text, begin, parse_special, plain)) return match;
  }
  return std::nullopt;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::Find(
    std::string_view text, bool parse_special, std::span<const ByteRange> plain) const {
  std::vector<Piece> pieces;
  size_t done = 0;  // All before belongs to a piece.
  size_t from = 0;  // Matches don't overlap, whether they count or not.
  while (const std::optional<Match> match = NextMatch(text, from, parse_special, plain)) {
    from = match->end;
    if (match->token == nullptr) continue;
    const AddedToken& token = *match->token;
    size_t begin = match->begin;
    size_t end = match->end;
    if (token.single_word && TouchesWord(text.substr(0, begin), text.substr(end))) continue;
    if (token.strip_left && begin > done) {
      begin = done + TrailingBegin(text.substr(done, begin - done), IsWhiteSpace);
    }
    if (token.strip_right) end += LeadingBytes(text.substr(end), IsWhiteSpace);
    if (begin > done) pieces.push_back({text.substr(done, begin - done), std::nullopt});
    pieces.push_back({text.substr(begin, end - begin), token.id});
    done = std::max(done, end);
  }
  if (done < text.size()) pieces.push_back({text.substr(done), std::nullopt});
  return pieces;
}

}  // namespace baton
