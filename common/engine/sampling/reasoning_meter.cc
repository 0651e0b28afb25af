#include "common/engine/sampling/reasoning_meter.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/grammar/grammar.h"

namespace baton {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// Bytes that follow a first one in UTF-8.
int Following(uint8_t first) {
  return first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
}

}  // namespace

ReasoningMeter::ReasoningMeter(std::string begin, std::string end, bool inside)
    : begin_(std::move(begin)),
      end_(std::move(end)),
      phase_(inside ? Phase::kInside : Phase::kBefore) {}

void ReasoningMeter::Append(std::string_view bytes) {
  const bool special = bytes.starts_with('\xFF');
  if (special) missing_ = 0;
  for (const char c : special ? std::string_view() : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    missing_ = (byte & 0xC0) == 0x80 ? std::max(0, missing_ - 1) : Following(byte);
  }
  if (phase_ == Phase::kAfter) return;
  text_ += bytes;
  if (phase_ == Phase::kBefore) return FindBegin();
  ++tokens_;
  if (text_.find(end_) != std::string::npos) {  // As a special token, too, it is spelled so.
    phase_ = Phase::kAfter;
    text_.clear();
    return;
  }
  text_.erase(0, text_.size() - std::min(text_.size(), end_.size() - 1));
}

void ReasoningMeter::FindBegin() {
  text_.erase(0, std::min(text_.find_first_not_of(kSpaces), text_.size()));
  for (const std::string& mark : {begin_, grammar::SpecialBytes(begin_)}) {
    if (text_.starts_with(mark)) {
      phase_ = Phase::kInside;
      text_.erase(0, mark.size());
      return;
    }
    if (std::string_view(mark).starts_with(text_)) return;  // It may become one.
  }
  phase_ = Phase::kAfter;
  text_.clear();
}

}  // namespace baton
