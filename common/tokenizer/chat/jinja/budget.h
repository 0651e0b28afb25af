// What one rendering may cost. Templates come with models, and messages from clients: neither may
// hold a thread for long or fill the memory.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_BUDGET_H_
#define COMMON_TOKENIZER_CHAT_JINJA_BUDGET_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace baton::jinja {

struct RenderLimits {
  int64_t steps = 4'000'000;  // Expressions, statements and elements of lists that are visited.
  // Made and searched, counted once for each time; what is alive at a time is less.
  size_t work_bytes = 256 << 20;
  size_t output_bytes = 64 << 20;
  int depth = 800;  // Expressions, statements and macros within each other.
};

class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits) {}

  // InvalidArgument once the limit is passed.
  absl::Status Step(int64_t steps = 1) {
    steps_ += steps;
    if (steps_ <= limits_.steps) return absl::OkStatus();
    return absl::InvalidArgumentError("the chat template takes too many steps");
  }
  absl::Status Work(size_t bytes) {
    if (bytes <= limits_.work_bytes - work_bytes_) {
      work_bytes_ += bytes;
      return absl::OkStatus();
    }
    work_bytes_ = limits_.work_bytes;
    return absl::InvalidArgumentError("the chat template handles too many bytes");
  }
  const RenderLimits& limits() const { return limits_; }

 private:
  const RenderLimits limits_;
  int64_t steps_ = 0;
  size_t work_bytes_ = 0;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_BUDGET_H_
