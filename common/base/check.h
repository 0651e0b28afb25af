// BATON_CHECK: broken invariants end the process. Input, network and dependency failures are
// absl::Status instead (see status.h). Active in every build, since a wrong answer is worse than
// a restart.
#ifndef COMMON_BASE_CHECK_H_
#define COMMON_BASE_CHECK_H_

#include <sstream>

namespace baton::internal {

// Collects the message of a failed check and aborts when it goes out of scope.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// Gives both branches of BATON_CHECK's conditional the type void.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace baton::internal

#define BATON_CHECK(condition)         \
  (__builtin_expect(!!(condition), 1)) \
      ? (void)0                        \
      : ::baton::internal::Voidify() & \
            ::baton::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // COMMON_BASE_CHECK_H_
