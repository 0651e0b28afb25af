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

void Text::AppendSlice(const Text& text, size_t begin, size_t end) {
  const size_t at = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  for (const ByteRange& range : RangesAfter(text.ranges_, begin)) {
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
  const std::span<const ByteRange> after = RangesAfter(ranges_, offset);
  return !after.empty() && after.front().begin <= offset ? Origin::kClient : Origin::kTemplate;
}

}  // namespace baton::jinja
