// What hashing a chunk's activations costs: 59 MB (4,096 tokens of 7,168 bfloat16) in pieces of
// 4 MiB, by Debian's plain XXH3 (SSE2 on x86) and by Checksum, which takes the widest instructions.
// From memory that no cache holds, and of pieces that have just been copied, as after a receive;
// and in parts of 48 KiB, as pages that a message has landed in.
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/checksum.h"

namespace baton {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kPieces = 14;
constexpr size_t kChunks = 8;  // More bytes than any cache has.

using Hash = uint64_t (*)(std::span<const std::byte>);

uint64_t PlainHash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t HashOfParts(std::span<const std::byte> bytes) {
  constexpr size_t kPartBytes = 48 << 10;
  RunningChecksum checksum;
  for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
    checksum.Add(bytes.subspan(at, std::min(kPartBytes, bytes.size() - at)));
  }
  return checksum.value();
}

double SecondsOf(Hash hash, std::span<const std::byte> bytes) {
  const auto begin = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(hash(bytes));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Cold(benchmark::State& state, Hash hash) {
  const std::vector<std::byte> chunks(kChunks * kPieces * kPieceBytes, std::byte{7});
  size_t chunk = 0;
  for (auto _ : state) {
    const std::span bytes(chunks.data() + (chunk++ % kChunks) * kPieces * kPieceBytes,
                          kPieces * kPieceBytes);
    double seconds = 0;
    for (size_t piece = 0; piece < kPieces; ++piece) {
      seconds += SecondsOf(hash, bytes.subspan(piece * kPieceBytes, kPieceBytes));
    }
    state.SetIterationTime(seconds);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPieces * kPieceBytes));
}

void Copied(benchmark::State& state, Hash hash) {
  const std::vector<std::byte> source(kPieces * kPieceBytes, std::byte{7});
  std::vector<std::byte> landed(source.size());
  for (auto _ : state) {
    double seconds = 0;
    for (size_t at = 0; at < source.size(); at += kPieceBytes) {
      std::memcpy(landed.data() + at, source.data() + at, kPieceBytes);
      seconds += SecondsOf(hash, std::span(landed).subspan(at, kPieceBytes));
    }
    state.SetIterationTime(seconds);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(source.size()));
}

BENCHMARK_CAPTURE(Cold, plain, PlainHash)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, widest, Checksum)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Copied, plain, PlainHash)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Copied, widest, Checksum)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Copied, parts, HashOfParts)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace baton
