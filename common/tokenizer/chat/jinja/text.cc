#include "common/tokenizer/chat/jinja/text.h"

#include <algorithm>
#include <utility>

namespace baton::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (origin == Origin::kClient) Mark(0, bytes_.size());
}

void Text::Mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!ranges_.empty() && ranges_.back().end == begin) {
    ranges_.back().end = end;
  } else {
    ranges_.push_back({begin, end});
  }
}

void Text::Append(std::string_view bytes, Origin origin) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kClient) Mark(begin, bytes_.size());
}

size_t Text::RangeAfter(size_t offset) const {
  const auto range = std::upper_bound(
      ranges_.begin(), ranges_.end(), offset,
      [](size_t offset, const ByteRange& candidate) { return offset < candidate.end; });
  return static_cast<size_t>(range - ranges_.begin());
}

void Text::AppendSlice(const Text& text, size_t begin, size_t end) {
  const size_t at = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  for (size_t i = text.RangeAfter(begin); i < text.ranges_.size(); ++i) {
    const ByteRange& range = text.ranges_[i];
    if (range.begin >= end) break;
    Mark(at + std::max(range.begin, begin) - begin, at + std::min(range.end, end) - begin);
  }
}

Text Text::Slice(size_t begin, size_t end) const {
  Text slice;
  slice.AppendSlice(*this, begin, end);
  return slice;
}

Origin Text::OriginAt(size_t offset) const {
  const size_t i = RangeAfter(offset);
  return i < ranges_.size() && ranges_[i].begin <= offset ? Origin::kClient : Origin::kTemplate;
}

}  // namespace baton::jinja
