#include "common/device/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

// A cache line, and the widest vector.
constexpr std::align_val_t kAlignment{64};
// A huge page. Buffers of several such pages use them if the system provides them. They cause fewer
// faults, and the kernel has 512 times fewer pages to look up when it copies to or from another
// process or a socket.
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kMinHugeBytes = 2 * kHugePageBytes;

std::align_val_t AlignmentOf(size_t bytes) {
  return bytes < kMinHugeBytes ? kAlignment : std::align_val_t{kHugePageBytes};
}

}  // namespace

const char* MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kCuda:
      return "CUDA";
  }
  return "unknown";
}

std::span<std::byte> MemorySpan::Host() const {
  BATON_CHECK(ReadableByHost()) << bytes << " bytes of " << MemoryKindName(kind) << " memory";
  return {data, bytes};
}

MemorySpan MemorySpan::Sub(size_t offset, size_t count) const {
  BATON_CHECK(offset <= bytes && count <= bytes - offset)
      << "[" << offset << ", +" << count << ") of " << bytes << " bytes";
  return {data + offset, count, kind, device};
}

MemoryBuffer::MemoryBuffer(MemorySpan span, std::function<void(const MemorySpan&)> release)
    : span_(span), release_(std::move(release)) {}

MemoryBuffer::~MemoryBuffer() {
  if (release_) release_(span_);
}

MemoryBuffer::MemoryBuffer(MemoryBuffer&& other) noexcept
    : span_(std::exchange(other.span_, {})), release_(std::exchange(other.release_, nullptr)) {}

MemoryBuffer& MemoryBuffer::operator=(MemoryBuffer&& other) noexcept {
  std::swap(span_, other.span_);
  std::swap(release_, other.release_);
  return *this;
}

absl::StatusOr<MemoryBuffer> AllocateHost(size_t bytes) {
  if (bytes == 0) return MemoryBuffer();
  void* const memory = ::operator new(bytes, AlignmentOf(bytes), std::nothrow);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  }
  PreferHugePages(memory, bytes);
  return MemoryBuffer({static_cast<std::byte*>(memory), bytes}, [](const MemorySpan& span) {
    ::operator delete(span.data, AlignmentOf(span.bytes));
  });
}

void PreferHugePages(void* memory, size_t bytes) {
  if (bytes < kMinHugeBytes) return;
  (void)madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
}

size_t TensorView::bytes() const {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns) * ElementBytes(type);
}

std::string TensorView::ToString() const {
  return absl::StrCat("[", rows, ", ", columns, "] ", ElementTypeName(type), " in ",
                      MemoryKindName(memory.kind), " memory");
}

TensorView HostTensor(std::span<float> values, int64_t columns) {
  const auto count = static_cast<int64_t>(values.size());
  BATON_CHECK(columns > 0 && count % columns == 0) << count << " values in rows of " << columns;
  return {HostSpan(std::as_writable_bytes(values)), ElementType::kFloat32, count / columns,
          columns};
}

std::span<float> Floats(const TensorView& view) {
  if (view.empty()) return {};
  BATON_CHECK(view.type == ElementType::kFloat32 && view.memory.bytes == view.bytes())
      << view.ToString() << " of " << view.memory.bytes << " bytes";
  const std::span<std::byte> bytes = view.memory.Host();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace baton
