#include "common/tokenizer/bpe/bpe.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

constexpr int32_t kMerged = -1;
constexpr int32_t kNone = -1;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

using IdsBySpelling = absl::flat_hash_map<std::string_view, int32_t>;

absl::StatusOr<int32_t> Find(const IdsBySpelling& ids, std::string_view spelling,
                             std::string_view role) {
  const auto found = ids.find(spelling);
  if (found == ids.end()) {
    return absl::InvalidArgumentError(Concat(role, " \"", spelling, "\" is not in model.vocab"));
  }
  return found->second;
}

}  // namespace

void BpeModel::AddEntry(const VocabEntry& entry, const BpeOptions& options) {
  const std::string& spelling = entry.spelling;
  if (!byte_level_ && !spelling.empty()) {
    const Utf8Step first = NextUtf8(spelling);
    const bool one = first.kind == Utf8Step::Kind::kCharacter;
    if (one && first.length == spelling.size()) character_ids_.emplace(first.code_point, entry.id);
  }
  if (!byte_level_ && options.byte_fallback) {
    if (const auto byte = ByteOfFallback(spelling)) byte_ids_[*byte] = entry.id;
  }
  if (!options.ignore_merges) return;
  std::optional<std::string> bytes = byte_level_ ? BytesOfSpelling(spelling) : spelling;
  if (bytes.has_value()) whole_words_.emplace(*std::move(bytes), entry.id);
}

absl::StatusOr<BpeModel> BpeModel::Create(const std::vector<VocabEntry>& vocab,
                                          const std::vector<MergeRule>& merges,
                                          const BpeOptions& options) {
  BpeModel model;
  model.byte_level_ = options.byte_level;
  model.fuse_unk_ = options.fuse_unk;
  model.byte_ids_.fill(kNone);
  IdsBySpelling ids;
  ids.reserve(vocab.size());
  for (const VocabEntry& entry : vocab) {
    ids.emplace(entry.spelling, entry.id);
    model.AddEntry(entry, options);
  }
  for (int byte = 0; options.byte_level && byte < 256; ++byte) {
    BATON_ASSIGN_OR_RETURN(
        model.byte_ids_[static_cast<size_t>(byte)],
        Find(ids, SpellByte(static_cast<uint8_t>(byte)), Concat("byte ", byte, ", spelled")));
  }
  if (!options.byte_level && options.unk_token.has_value()) {
    BATON_ASSIGN_OR_RETURN(model.unk_id_, Find(ids, *options.unk_token, "model.unk_token"));
  }
  model.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const MergeRule& rule = merges[rank];
    const std::string where = Concat("model.merges[", rank, "]:");
    BATON_ASSIGN_OR_RETURN(const int32_t left, Find(ids, rule.left, where));
    BATON_ASSIGN_OR_RETURN(const int32_t right, Find(ids, rule.right, where));
    BATON_ASSIGN_OR_RETURN(const int32_t merged, Find(ids, Concat(rule.left, rule.right), where));
    // A repeated pair takes its last rank, as it does in Hugging Face's library.
    model.merges_.insert_or_assign(PairKey(left, right),
                                   Merge{rule.rank.value_or(static_cast<uint32_t>(rank)), merged});
  }
  return model;
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::EncodeWord(std::string_view word, BpeScratch* scratch,
                          std::vector<int32_t>* ids) const {
  if (const auto whole = whole_words_.find(ToAbsl(word)); whole != whole_words_.end()) {
    ids->push_back(whole->second);
    return;
  }
  auto& symbols = scratch->symbols_;
  symbols.clear();
  if (byte_level_) {
    for (const char c : word) scratch->Add(byte_ids_[static_cast<uint8_t>(c)]);
  } else {
    AddCharacters(word, scratch);
  }
  if (!symbols.empty()) symbols.back().next = kNone;
  MergeAll(scratch);
  for (const BpeScratch::Symbol& symbol : symbols) {
    if (symbol.id != kMerged) ids->push_back(symbol.id);
  }
}

void BpeModel::AddCharacters(std::string_view word, BpeScratch* scratch) const {
  bool unknown = false;  // The last symbol is unk_id_'s, and is not there yet.
  while (!word.empty()) {
    const Utf8Step step = NextUtf8(word);
    const std::string_view bytes = word.substr(0, step.length);
    word.remove_prefix(step.length);
    if (const auto known = character_ids_.find(step.code_point); known != character_ids_.end()) {
      if (std::exchange(unknown, false)) scratch->Add(*unk_id_);
      scratch->Add(known->second);
      continue;
    }
    const bool has_bytes = std::all_of(bytes.begin(), bytes.end(), [this](char c) {
      return byte_ids_[static_cast<uint8_t>(c)] != kNone;
    });
    if (has_bytes) {
      for (const char c : bytes) scratch->Add(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (unk_id_.has_value()) {
      if (unknown && !fuse_unk_) scratch->Add(*unk_id_);
      unknown = true;
    }
  }
  if (unknown) scratch->Add(*unk_id_);
}

namespace {

// Orders a heap with the lowest candidate on top.
constexpr auto kLater = [](const auto& a, const auto& b) { return a.order > b.order; };

}  // namespace

void BpeModel::PushCandidate(int32_t left_position, BpeScratch* scratch) const {
  const auto& symbols = scratch->symbols_;
  const BpeScratch::Symbol& left = symbols[left_position];
  const Merge* merge = FindMerge(left.id, symbols[left.next].id);
  if (merge == nullptr) return;
  const uint64_t order =
      (static_cast<uint64_t>(merge->rank) << 32) | static_cast<uint32_t>(left_position);
  scratch->heap_.push_back({order, merge->merged_id});
}

// Candidates stay in the heap when a neighbour changes and are checked when they come up. Each
// merge adds at most two, so a word of n bytes sees fewer than 3n of them; rescanning the word for
// its best pair after every merge would be quadratic in long runs of one character.
void BpeModel::MergeAll(BpeScratch* scratch) const {
  auto& symbols = scratch->symbols_;
  auto& heap = scratch->heap_;
  heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) PushCandidate(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), kLater);
  while (!heap.empty()) {
    ++scratch->steps_;
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const BpeScratch::Candidate candidate = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(candidate.order & 0xFFFFFFFF);
    BpeScratch::Symbol& left = symbols[position];
    if (left.id == kMerged || left.next == kNone) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->merged_id != candidate.merged_id) continue;

    left.id = candidate.merged_id;
    left.next = right.next;
    right.id = kMerged;
    if (left.next != kNone) symbols[left.next].previous = position;
    const auto push = [&](int32_t left_position) {
      const size_t before = heap.size();
      PushCandidate(left_position, scratch);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), kLater);
    };
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(position);
  }
}

namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kSubstitutes = 68;

struct Alphabet {
  std::array<char32_t, 256> character_of_byte{};
  std::array<int, kFirstSubstitute + kSubstitutes> byte_of_character{};  // -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte_of_character) byte = -1;
  char32_t next = kFirstSubstitute;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character_of_byte[byte] = character;
    alphabet.byte_of_character[character] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<uint8_t> ByteOfFallback(std::string_view spelling) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c - 'A' + 10; };
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  const bool fits = spelling.size() == 6 && spelling.starts_with("<0x") && spelling[5] == '>' &&
                    is_digit(spelling[3]) && is_digit(spelling[4]);
  if (!fits) return std::nullopt;
  return static_cast<uint8_t>(digit(spelling[3]) * 16 + digit(spelling[4]));
}

std::string SpellByte(uint8_t byte) {
  std::string spelling;
  AppendCodePoint(kAlphabet.character_of_byte[byte], &spelling);
  return spelling;
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Step step = NextUtf8(spelling);
    if (step.kind != Utf8Step::Kind::kCharacter) return std::nullopt;
    if (step.code_point >= kAlphabet.byte_of_character.size()) return std::nullopt;
    const int byte = kAlphabet.byte_of_character[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace baton
