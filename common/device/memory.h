// Memory of a kind, and matrices in it.
#ifndef COMMON_DEVICE_MEMORY_H_
#define COMMON_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/types/element_type.h"

namespace baton {

enum class MemoryKind : uint8_t {
  kHost,    // Ordinary memory of this process.
  kPinned,  // The same, registered with a device that copies from and to it by itself.
  kCuda,    // A GPU's; the CPU can't follow a pointer to it.
};

const char* MemoryKindName(MemoryKind kind);

// Bytes that somebody else owns.
struct MemorySpan {
  std::byte* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;  // Of kCuda: which.

  bool empty() const { return bytes == 0; }
  bool ReadableByHost() const { return kind != MemoryKind::kCuda; }
  // The bytes as the CPU sees them; the memory must be readable by it.
  std::span<std::byte> Host() const;
  // [offset, offset + count) of it, which must be within.
  MemorySpan Sub(size_t offset, size_t count) const;
};

// A span of host memory.
inline MemorySpan HostSpan(std::span<std::byte> bytes) { return {bytes.data(), bytes.size()}; }

// Owns its bytes, whatever allocated them.
class MemoryBuffer {
 public:
  MemoryBuffer() = default;  // Of no bytes.
  // `release` is called once with the span, when the buffer goes.
  MemoryBuffer(MemorySpan span, std::function<void(const MemorySpan&)> release);
  ~MemoryBuffer();
  MemoryBuffer(MemoryBuffer&& other) noexcept;
  MemoryBuffer& operator=(MemoryBuffer&& other) noexcept;

  const MemorySpan& span() const { return span_; }

 private:
  MemorySpan span_;
  std::function<void(const MemorySpan&)> release_;
};

// Host memory, aligned for vectors (from 4 MiB on for huge pages, too) and left uninitialised: its
// pages are first touched by whoever fills it. ResourceExhausted with the size if there is none.
absl::StatusOr<MemoryBuffer> AllocateHost(size_t bytes);

// Asks for huge pages under memory that has room for some. Only advice: small ones are as good in
// all but speed.
void PreferHugePages(void* memory, size_t bytes);

// A row-major matrix in somebody else's memory, without gaps; none has no rows.
struct TensorView {
  MemorySpan memory;
  ElementType type = ElementType::kFloat32;
  int64_t rows = 0;
  int64_t columns = 0;

  bool empty() const { return rows == 0; }
  // rows * columns elements.
  size_t bytes() const;
  // "[20, 64] float32 in host memory".
  std::string ToString() const;
};

// A matrix of float32 in host memory; values.size() must be a multiple of `columns`.
TensorView HostTensor(std::span<float> values, int64_t columns);

// The elements of a float32 matrix that the host can read, which the view must be.
std::span<float> Floats(const TensorView& view);

}  // namespace baton

#endif  // COMMON_DEVICE_MEMORY_H_
