// Text that remembers which of its bytes came from a client. The marks follow every operation on
// strings, so that whatever a template does with a message, what the client wrote never becomes a
// special token.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_TEXT_H_
#define COMMON_TOKENIZER_CHAT_JINJA_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/bpe/added_tokens.h"

namespace baton::jinja {

enum class Origin { kTemplate, kClient };

// Well-formed UTF-8 with the byte ranges that a client wrote: ascending, not empty, apart.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, Origin origin = Origin::kTemplate);

  const std::string& bytes() const { return bytes_; }
  const std::vector<ByteRange>& client_ranges() const { return ranges_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }

  void Append(const Text& text) { AppendSlice(text, 0, text.size()); }
  void Append(std::string_view bytes, Origin origin = Origin::kTemplate);
  // Bytes [begin, end) of `text`, with their marks.
  void AppendSlice(const Text& text, size_t begin, size_t end);
  Text Slice(size_t begin, size_t end) const;

  // kClient if any byte is a client's.
  Origin origin() const { return ranges_.empty() ? Origin::kTemplate : Origin::kClient; }
  // The origin of the byte at `offset`.
  Origin OriginAt(size_t offset) const;

 private:
  void Mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteRange> ranges_;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_TEXT_H_
