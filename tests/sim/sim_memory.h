// The KV memory of a simulated worker, slot by slot, and the kernels' way through it. Unowned pages
// hold canaries: reading one computes garbage; writing to one, or freeing one that is in use,
// breaks a promise.
#ifndef TESTS_SIM_SIM_MEMORY_H_
#define TESTS_SIM_SIM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/types/instance.h"

namespace baton::sim {

// The part of a slot's bits that a rank holds, and the part of these that it computes with: ranks
// that hold the same heads have different query heads.
struct RankBits {
  uint64_t held = ~uint64_t{0};
  uint64_t attended = ~uint64_t{0};
};
// Bits of a head's keys (value 0) or values (1) in a slot.
uint64_t HeadBits(int kv_heads, int value, int head);
RankBits BitsOf(int kv_heads, TensorRank rank);
// Bits of all keys and values of these heads.
uint64_t BitsOfHeads(int kv_heads, IndexRange heads);
// Bits of the activations that the rank passes on.
uint64_t SliceBits(TensorRank rank);

class SimMemory {
 public:
  // Canaries everywhere.
  SimMemory(int pages, int layers, int page_size, RankBits bits = {});

  int layers() const { return layers_; }
  int page_size() const { return page_size_; }
  uint64_t Get(int page, int layer, int token) const { return slots_[Slot(page, layer, token)]; }
  // Keeps what of `value` it holds.
  void Set(int page, int layer, int token, uint64_t value);
  // The same of some bits; the others stay as they are.
  void Merge(int page, int layer, int token, uint64_t value, uint64_t bits) {
    Set(page, layer, token, (Get(page, layer, token) & ~bits) | (value & bits));
  }
  // What lies behind the first `tokens` of a page becomes 0.
  void ClearTail(int page, int tokens);
  // Frees the page. Not OK: it is still in use.
  std::string Free(int page);
  void FreeAll();

  // Layers [begin, end) of pages [page, page + count), as they lie in memory.
  std::vector<uint64_t> Read(int page, int count, int begin, int end) const;

  // Who holds a page may read or write it at any time until it lets go.
  void Hold(std::span<const int> pages);
  void LetGo(std::span<const int> pages);
  bool AnyHeld() const;

  // The weighted sum of positions [0, tokens) of a sequence on these pages.
  uint64_t Attend(std::span<const int> pages, int tokens, int layer) const;
  // Runs the tokens from position `begin` on through all layers: `x` is what enters and becomes
  // what leaves. The pages must cover them.
  void Forward(std::span<const int> pages, int begin, std::span<uint64_t> x);
  // The same by all ranks of a stage together, each on its own memory and pages.
  struct Part {
    SimMemory* memory = nullptr;
    std::span<const int> pages;
  };
  static void ForwardTogether(std::span<const Part> ranks, int begin, std::span<uint64_t> x);
  // One number for all that is stored of the first `tokens`.
  uint64_t Digest(std::span<const int> pages, int tokens) const;

 private:
  size_t Band(int page, int layer) const {
    return static_cast<size_t>(page) * static_cast<size_t>(layers_) + static_cast<size_t>(layer);
  }
  size_t Slot(int page, int layer, int token) const {
    return Band(page, layer) * static_cast<size_t>(page_size_) + static_cast<size_t>(token);
  }

  const int layers_;
  const int page_size_;
  const RankBits bits_;
  std::vector<uint64_t> slots_;  // [page][layer][token]
  std::vector<uint64_t> sums_;   // [page][layer], weighted.
  std::vector<int> held_;        // By page.
};

// The pages of a pool that have become free since it was asked last, those that were given out
// again at once too.
class FreedPages {
 public:
  std::vector<int> Take(const BlockPool& pool);
  void Reset() { *this = {}; }

 private:
  uint64_t total_ = 0;
  std::vector<uint64_t> times_;  // By page.
};

uint64_t ChecksumOf(std::span<const uint64_t> values);

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_MEMORY_H_
