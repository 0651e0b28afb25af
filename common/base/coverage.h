// Marks the places in cores that a simulation has to reach: a refusal, a race, a late state. Each
// mark is a row of the coverage table (tests/sim/coverage.h) from the moment that it is compiled,
// reached or not, so that a state which no run reaches shows as a row of zero. FoundationDB's
// CODE_PROBE is the model. Rejected: marks that only tests compile. The simulation runs the objects
// that ship, and a mark costs production one relaxed load and store where something rare happens.
#ifndef COMMON_BASE_COVERAGE_H_
#define COMMON_BASE_COVERAGE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace baton {

class CoverageMark {
 public:
  explicit CoverageMark(const char* name) noexcept : name_(name), next_(first_) { first_ = this; }

  // Any thread; threads that meet may lose a count, which does no harm. In the simulation
  // there is one.
  void Hit() { count_.store(count() + 1, std::memory_order_relaxed); }

  const char* name() const { return name_; }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  const CoverageMark* next() const { return next_; }
  static const CoverageMark* first() { return first_; }  // In no order.

 private:
  const char* const name_;
  std::atomic<uint64_t> count_{0};
  const CoverageMark* const next_;
  static inline const CoverageMark* first_ = nullptr;
};

namespace coverage_internal {

template <size_t kSize>
struct Name {
  // Implicit, so that Covered<"..."> reads as it does.
  constexpr Name(const char (&literal)[kSize]) { std::copy_n(literal, kSize, text); }  // NOLINT
  char text[kSize]{};
};

template <Name kName>
inline CoverageMark mark{kName.text};  // NOLINT: registers itself before main.

}  // namespace coverage_internal

// "core: what happened". Two places with one name are one row.
template <coverage_internal::Name kName>
void Covered() {
  coverage_internal::mark<kName>.Hit();
}

}  // namespace baton

#endif  // COMMON_BASE_COVERAGE_H_
