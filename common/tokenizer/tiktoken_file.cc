#include "common/tokenizer/tiktoken_file.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/json/parse_json.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/words/unicode.h"

namespace baton {
namespace {

constexpr size_t kMaxTokenBytes = 1024;
// Ids behind the ranks that are for special tokens.
constexpr int32_t kReservedIds = 256;

// Chinese characters apart; words in the case that people write them in; numbers of three digits.
std::string WordPattern() {
  // Upper: Lu, Lt, Lm, Lo and M without Han; lower: Ll, Lm, Lo and M. Said as what they are not, in
  // one class, so that long words need no stack.
  const std::string upper = R"([^\p{sc:Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}])";
  const std::string lower = R"([^\p{sc:Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}])";
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  const std::string behind = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  const std::string space = Concat("[", kWhiteSpaceClass, "]");
  const std::string no_space = Concat("[^", kWhiteSpaceClass, "]");
  return Concat(R"(\p{sc:Han}+|)", before, upper, "*", lower, "+", behind, "|", before, upper, "+",
                lower, "*", behind, R"(|\p{N}{1,3}| ?[^)", kWhiteSpaceClass,
                R"(\p{L}\p{N}]+[\r\n]*|)", space, R"(*[\r\n]+|)", space, "+(?!", no_space, ")|",
                space, "+");
}

std::string Spelled(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) spelling += SpellByte(static_cast<uint8_t>(c));
  return spelling;
}

using Ranks = absl::flat_hash_map<std::string, int32_t>;

absl::StatusOr<Ranks> ReadRanks(std::string_view file) {
  Ranks ranks;
  size_t line = 0;
  while (!file.empty()) {
    ++line;
    const size_t end = std::min(file.find('\n'), file.size());
    std::string_view text = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    const size_t space = text.find(' ');
    std::string bytes;
    int32_t rank = 0;
    const bool fits = space != std::string_view::npos &&
                      absl::Base64Unescape(ToAbsl(text.substr(0, space)), &bytes) &&
                      absl::SimpleAtoi(ToAbsl(text.substr(space + 1)), &rank) && !bytes.empty() &&
                      bytes.size() <= kMaxTokenBytes && rank >= 0 &&
                      rank < kMaxVocabSize - kReservedIds;
    if (!fits) {
      return absl::InvalidArgumentError(
          Concat("line ", line, ": expected a token in base64 and its rank"));
    }
    if (!ranks.emplace(std::move(bytes), rank).second) {
      return absl::InvalidArgumentError(Concat("line ", line, ": this token stands there twice"));
    }
  }
  return ranks;
}

// Two tokens merge wherever both together are one, and of several pairs the lowest of these first.
void AddMerges(const Ranks& ranks, TokenizerSpec* spec) {
  for (const auto& [bytes, rank] : ranks) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string left = bytes.substr(0, cut);
      const std::string right = bytes.substr(cut);
      if (!ranks.contains(left) || !ranks.contains(right)) continue;
      spec->merges.push_back({Spelled(left), Spelled(right), static_cast<uint32_t>(rank)});
    }
  }
}

// Reserved ids without a name have one all the same.
void AddReserved(TokenizerSpec* spec) {
  absl::flat_hash_set<int32_t> named;
  for (const AddedToken& token : spec->added_tokens) named.insert(token.id);
  const auto first = static_cast<int32_t>(spec->vocab.size());
  for (int32_t id = first; id < first + kReservedIds; ++id) {
    if (named.contains(id)) continue;
    spec->added_tokens.push_back({id, Concat("<|reserved_token_", id, "|>"), /*special=*/true});
  }
}

absl::Status AddSpecialTokens(std::string_view config, TokenizerSpec* spec) {
  if (config.empty()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document,
                         ParseJson(config, "", DuplicateKeys::kKeepLast));
  const JsonReader tokens = JsonReader(document)["added_tokens_decoder"];
  if (tokens.IsNull()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(tokens.ExpectObject());
  for (const auto& [key, value] : tokens.value().items()) {
    const JsonReader entry = tokens[key];
    AddedToken token;
    if (!absl::SimpleAtoi(key, &token.id) || token.id < 0 || token.id >= kMaxVocabSize) {
      return entry.Malformed(Concat("an id below ", kMaxVocabSize, " as its key"));
    }
    BATON_ASSIGN_OR_RETURN(token.content, entry["content"].String());
    if (token.content.empty() || token.content.size() > kMaxTokenBytes) {
      return entry["content"].Malformed(Concat("1 to ", kMaxTokenBytes, " bytes"));
    }
    BATON_ASSIGN_OR_RETURN(token.special, entry["special"].Bool(true));
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// An id has one token.
absl::Status CheckIds(const TokenizerSpec& spec) {
  absl::flat_hash_map<int32_t, std::string_view> known;
  for (const VocabEntry& entry : spec.vocab) {
    if (known.emplace(entry.id, entry.spelling).second) continue;
    return absl::InvalidArgumentError(Concat("two tokens have the rank ", entry.id));
  }
  for (const AddedToken& token : spec.added_tokens) {
    const auto [other, is_new] = known.emplace(token.id, token.content);
    if (is_new || other->second == token.content) continue;
    return absl::InvalidArgumentError(Concat("added_tokens_decoder: the id ", token.id, " of \"",
                                             token.content, "\" is another token's"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTiktoken(std::string_view file, std::string_view config) {
  BATON_ASSIGN_OR_RETURN(const Ranks ranks, ReadRanks(file));
  TokenizerSpec spec;
  spec.bpe.ignore_merges = true;  // As OpenAI's library: a word that is a token is that token.
  for (const auto& [bytes, rank] : ranks) spec.vocab.push_back({Spelled(bytes), rank});
  AddMerges(ranks, &spec);
  spec.splits.push_back(
      {WordPattern(), SplitRule::Syntax::kPcre2, SplitBehavior::kIsolated, false});
  BATON_RETURN_IF_ERROR(Annotate(AddSpecialTokens(config, &spec), "tokenizer_config.json"));
  AddReserved(&spec);
  BATON_RETURN_IF_ERROR(CheckIds(spec));
  return spec;
}

}  // namespace baton
