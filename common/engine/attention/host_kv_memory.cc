#include "common/engine/attention/host_kv_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checksum.h"
#include "common/device/memory.h"

namespace baton {

absl::StatusOr<std::unique_ptr<KvPool>> KvPool::Create(const KvGeometry& geometry) {
  size_t size = 0;
  if (__builtin_mul_overflow(geometry.PageBytes(), static_cast<size_t>(geometry.page_count),
                             &size)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(geometry.page_count, " KV pages of ", geometry.PageBytes(), " bytes"));
  }
  // Fresh anonymous memory is zero and page-aligned, as transports prefer, and takes memory only
  // when a page is first used.
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", geometry.page_count, " KV pages of ", geometry.PageBytes(), " bytes"));
  }
  // Readers in other processes look up each page that they copy (common/transport, "Pulls"). With
  // small pages that takes longer than the copy.
  PreferHugePages(base, size);
  return std::unique_ptr<KvPool>(new KvPool(geometry, static_cast<std::byte*>(base), size));
}

KvPool::~KvPool() { munmap(base_, size_); }

std::byte* KvPool::Head(int page, int layer, int value, int head) {
  const auto local_layer = static_cast<size_t>(layer - geometry_.layer_begin);
  const size_t run = static_cast<size_t>(value) * static_cast<size_t>(geometry_.kv_heads) +
                     static_cast<size_t>(head);
  return base_ + static_cast<size_t>(page) * geometry_.PageBytes() +
         local_layer * geometry_.LayerBytes() + run * geometry_.HeadBytes();
}

size_t BeginOf(const KvGeometry& geometry, const KvPiece& piece) {
  BATON_CHECK(piece.page >= 0 && piece.page < geometry.page_count) << "page " << piece.page;
  const size_t page_begin = static_cast<size_t>(piece.page) * geometry.PageBytes();
  const size_t behind =
      geometry.PageBytes() * static_cast<size_t>(geometry.page_count) - page_begin;
  BATON_CHECK(piece.offset_bytes <= behind && piece.bytes <= behind - piece.offset_bytes)
      << piece.bytes << " bytes from " << piece.offset_bytes << " of page " << piece.page;
  return page_begin + piece.offset_bytes;
}

HostKvMemory::HostKvMemory(const KvGeometry& geometry, std::span<std::byte> pages)
    : geometry_(geometry), pages_(pages) {
  BATON_CHECK(pages.size() == geometry.PageBytes() * static_cast<size_t>(geometry.page_count))
      << pages.size() << " bytes for " << geometry.page_count << " pages";
}

std::span<std::byte> HostKvMemory::Bytes(const KvPiece& piece) const {
  return pages_.subspan(BeginOf(geometry_, piece), piece.bytes);
}

void HostKvMemory::ClearTail(int page, int valid_tokens) {
  const std::span<std::byte> bytes = Bytes({page, 0, geometry_.PageBytes()});
  const size_t head_bytes = geometry_.HeadBytes();
  const size_t valid_bytes =
      head_bytes / static_cast<size_t>(geometry_.page_size) * static_cast<size_t>(valid_tokens);
  for (size_t head = 0; head < bytes.size(); head += head_bytes) {
    std::memset(bytes.data() + head + valid_bytes, 0, head_bytes - valid_bytes);
  }
}

// The hash is computed just before the bytes are sent, so that the second read finds them in the
// cache.
void HostKvMemory::Export(const std::vector<KvPiece>& pieces, Exported done) {
  BATON_CHECK(!pieces.empty()) << "an export of nothing";
  if (pieces.size() == 1) {
    const std::span<std::byte> bytes = Bytes(pieces.front());
    return done(ExportedKv{0, HostSpan(bytes), Checksum(bytes)});
  }
  size_t size = 0;
  for (const KvPiece& piece : pieces) size += Bytes(piece).size();
  // Not zero-filled: every byte is written below.
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]);
  if (memory == nullptr) {
    return done(absl::ResourceExhaustedError(absl::StrCat("no memory to gather ", size, " bytes")));
  }
  size_t filled = 0;
  for (const KvPiece& piece : pieces) {
    const std::span<std::byte> bytes = Bytes(piece);
    std::memcpy(memory.get() + filled, bytes.data(), bytes.size());
    filled += bytes.size();
  }
  const uint64_t id = next_export_++;
  const std::span<std::byte> all(memory.get(), size);
  gathered_[id] = std::move(memory);
  done(ExportedKv{id, HostSpan(all), Checksum(all)});
}

void HostKvMemory::EndExport(uint64_t export_id) {
  if (export_id == 0) return;  // Exported in place.
  BATON_CHECK(gathered_.erase(export_id) == 1) << "export " << export_id << " is not there";
}

MemorySpan HostKvMemory::Landing(const KvPiece& piece) { return HostSpan(Bytes(piece)); }

void HostKvMemory::FinishLanding(const std::vector<KvPiece>& pieces, Landed done) {
  if (pieces.size() == 1) return done(Checksum(Bytes(pieces.front())));
  RunningChecksum checksum;
  for (const KvPiece& piece : pieces) checksum.Add(Bytes(piece));
  done(checksum.value());
}

}  // namespace baton
