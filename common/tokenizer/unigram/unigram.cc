#include "common/tokenizer/unigram/unigram.h"

#include <algorithm>
#include <iterator>

#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

// What a character that no piece covers costs below the worst piece; part of the format.
constexpr double kUnknownPenalty = 10;

uint8_t ByteAt(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

}  // namespace

absl::StatusOr<UnigramModel> UnigramModel::Create(const std::vector<VocabEntry>& vocab,
                                                  const std::vector<double>& scores, int32_t unk_id,
                                                  bool byte_fallback) {
  if (unk_id < 0 || static_cast<size_t>(unk_id) >= vocab.size() || scores.size() != vocab.size()) {
    return absl::InvalidArgumentError(Concat("model.unk_id: ", unk_id, " is no token"));
  }
  UnigramModel model;
  model.unk_id_ = unk_id;
  model.unk_score_ = *std::min_element(scores.begin(), scores.end()) - kUnknownPenalty;
  model.byte_ids_.fill(-1);
  for (size_t i = 0; i < vocab.size(); ++i) {
    model.pieces_.push_back({vocab[i].spelling, vocab[i].id, scores[i]});
    if (!byte_fallback) continue;
    if (const auto byte = ByteOfFallback(vocab[i].spelling)) model.byte_ids_[*byte] = vocab[i].id;
  }
  // The last of equal texts counts.
  std::stable_sort(model.pieces_.begin(), model.pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.text < b.text; });
  const auto kept = std::unique(model.pieces_.rbegin(), model.pieces_.rend(),
                                [](const Piece& a, const Piece& b) { return a.text == b.text; });
  model.pieces_.erase(model.pieces_.begin(), kept.base());
  for (size_t byte = 0; byte <= 256; ++byte) {
    const auto first = std::partition_point(
        model.pieces_.begin(), model.pieces_.end(),
        [byte](const Piece& piece) { return piece.text.empty() || ByteAt(piece.text, 0) < byte; });
    model.by_byte_[byte] = static_cast<uint32_t>(first - model.pieces_.begin());
  }
  return model;
}

std::optional<int32_t> UnigramModel::IdOf(std::string_view text) const {
  const auto found = std::lower_bound(
      pieces_.begin(), pieces_.end(), text,
      [](const Piece& piece, std::string_view wanted) { return piece.text < wanted; });
  if (found == pieces_.end() || found->text != text) return std::nullopt;
  return found->id;
}

// The pieces that begin at `from`, from the shortest on: the range of those that agree with the
// word narrows byte by byte.
void UnigramModel::AddPieces(std::string_view word, size_t from, std::vector<Place>& places) const {
  const double before = places[from].score;
  const size_t character = NextUtf8(word.substr(from)).length;
  bool single = false;
  const auto add = [&](size_t end, int32_t id, double score) {
    Place& place = places[end];
    if (place.from >= 0 && score <= place.score) return;
    place = {static_cast<int32_t>(from), id, score};
  };
  auto low = pieces_.begin() + by_byte_[ByteAt(word, from)];
  auto high = pieces_.begin() + by_byte_[size_t{ByteAt(word, from)} + 1];
  for (size_t length = 1; low != high; ++length) {
    if (low->text.size() == length) {
      add(from + length, low->id, low->score + before);
      single |= length == character;
      ++low;
    }
    if (from + length == word.size()) break;
    const uint8_t next = ByteAt(word, from + length);
    low = std::partition_point(
        low, high, [&](const Piece& piece) { return ByteAt(piece.text, length) < next; });
    high = std::partition_point(
        low, high, [&](const Piece& piece) { return ByteAt(piece.text, length) == next; });
  }
  if (!single) add(from + character, unk_id_, unk_score_ + before);
}

void UnigramModel::EncodeWord(std::string_view word, std::vector<int32_t>* ids) const {
  std::vector<Place> places(word.size() + 1);
  for (size_t at = 0; at < word.size(); at += NextUtf8(word.substr(at)).length) {
    AddPieces(word, at, places);
  }
  std::vector<size_t> ends;
  for (size_t end = word.size(); end > 0; end = static_cast<size_t>(places[end].from)) {
    ends.push_back(end);
  }
  size_t unknown = word.size();  // Where a run of what is unknown begins.
  const auto end_unknown = [&](size_t end) {
    if (unknown < end) AppendUnknown(word.substr(unknown, end - unknown), ids);
    unknown = word.size();
  };
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Place& place = places[*end];
    const auto from = static_cast<size_t>(place.from);
    if (place.id == unk_id_) {
      unknown = std::min(unknown, from);
      continue;
    }
    end_unknown(from);
    ids->push_back(place.id);
  }
  end_unknown(word.size());
}

void UnigramModel::AppendUnknown(std::string_view text, std::vector<int32_t>* ids) const {
  if (const auto id = IdOf(text)) return ids->push_back(*id);
  const bool has_bytes = std::all_of(
      text.begin(), text.end(), [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
  if (!has_bytes) return ids->push_back(unk_id_);
  for (const char c : text) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

}  // namespace baton
