#include "common/base/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace baton::internal {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads it");

// The kernel looks sleepers up by address and does not read the word. If the memory has been
// reused, a sleeper on its new owner wakes spuriously, which users of futexes allow for.
void WakeSleepers(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void SleepWhile(std::atomic<uint32_t>* word, uint32_t seen, std::chrono::microseconds limit) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec relative = {whole.count(), std::chrono::nanoseconds(limit - whole).count()};
  const bool forever = limit == std::chrono::microseconds::max();
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, forever ? nullptr : &relative, nullptr, 0);
}

}  // namespace baton::internal
