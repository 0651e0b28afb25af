// Kinds of memory, spans of it, and matrices in it.
#ifndef COMMON_DEVICE_MEMORY_H_
#define COMMON_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/types/kv_layout.h"

namespace baton {

enum class MemoryKind : uint8_t {
  kHost,    // Ordinary memory of this process.
  kPinned,  // The same, registered with a device that copies from and to it by itself.
  kCuda,    // A GPU's; the CPU can't follow a pointer to it.
};

const char* MemoryKindName(MemoryKind kind);

// Bytes that another object owns.
struct MemorySpan {
  std::byte* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;  // With kCuda: the GPU's number.

  bool empty() const { return bytes == 0; }
  bool ReadableByHost() const { return kind != MemoryKind::kCuda; }
  // The bytes for the CPU, which must be able to read the memory.
  std::span<std::byte> Host() const;
  // The bytes [offset, offset + count), which must be within the span.
  MemorySpan Sub(size_t offset, size_t count) const;
};

// A span of host memory.
inline MemorySpan HostSpan(std::span<std::byte> bytes) { return {bytes.data(), bytes.size()}; }

// Owns its bytes, of any kind.
class MemoryBuffer {
 public:
  MemoryBuffer() = default;  // Empty.
  // `release` is called once with the span, when the buffer is destroyed.
  MemoryBuffer(MemorySpan span, std::function<void(const MemorySpan&)> release);
  ~MemoryBuffer();
  MemoryBuffer(MemoryBuffer&& other) noexcept;
  MemoryBuffer& operator=(MemoryBuffer&& other) noexcept;

  const MemorySpan& span() const { return span_; }

 private:
  MemorySpan span_;
  std::function<void(const MemorySpan&)> release_;
};

// Host memory, aligned for vectors (from 4 MiB on also for huge pages) and uninitialised, so that
// the thread that fills it touches its pages first. ResourceExhausted names the size.
absl::StatusOr<MemoryBuffer> AllocateHost(size_t bytes);

// Asks for huge pages for a large block of memory. Only advice: small pages work too, but are
// slower.
void PreferHugePages(void* memory, size_t bytes);

// A row-major matrix without gaps in memory that another object owns. An empty view has no rows.
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

// The elements of a float32 matrix in memory that the host can read.
std::span<float> Floats(const TensorView& view);

}  // namespace baton

#endif  // COMMON_DEVICE_MEMORY_H_
