#include "tests/sim/sim_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "tests/sim/content.h"

namespace baton::sim {
namespace {

constexpr uint64_t kCanary = 0xdeadc0dedeadc0de;

}  // namespace

uint64_t HeadBits(int kv_heads, int value, int head) {
  const int width = 64 / 2 / kv_heads;
  return ((uint64_t{1} << width) - 1) << ((value * kv_heads + head) * width);
}

uint64_t BitsOfHeads(int kv_heads, IndexRange heads) {
  uint64_t bits = 0;
  for (int head = heads.begin; head < heads.end; ++head) {
    bits |= HeadBits(kv_heads, 0, head) | HeadBits(kv_heads, 1, head);
  }
  return bits;
}

RankBits BitsOf(int kv_heads, TensorRank rank) {
  if (rank.alone()) return {};
  RankBits bits{BitsOfHeads(kv_heads, KvHeadsOf(kv_heads, rank)), 0};
  // As many heads as ranks: each one's part of the head that it shares.
  const int parts = std::max(kv_heads, rank.size);
  const int each = parts / rank.size;
  for (int part = rank.rank * each; part < (rank.rank + 1) * each; ++part) {
    bits.attended |= HeadBits(parts, 0, part) | HeadBits(parts, 1, part);
  }
  return bits;
}

uint64_t SliceBits(TensorRank rank) {
  const int width = 64 / rank.size;
  if (rank.alone()) return ~uint64_t{0};
  return ((uint64_t{1} << width) - 1) << (rank.rank * width);
}

SimMemory::SimMemory(int pages, int layers, int page_size, RankBits bits)
    : layers_(layers),
      page_size_(page_size),
      bits_(bits),
      slots_(static_cast<size_t>(pages) * static_cast<size_t>(layers * page_size)),
      sums_(static_cast<size_t>(pages) * static_cast<size_t>(layers)),
      held_(static_cast<size_t>(pages), 0) {
  BATON_CHECK(page_size <= kMaxPageSize) << page_size;
  FreeAll();
}

void SimMemory::Set(int page, int layer, int token, uint64_t value) {
  uint64_t& slot = slots_[Slot(page, layer, token)];
  value &= bits_.held;
  sums_[Band(page, layer)] += kTokenWeights[static_cast<size_t>(token)] *
                              ((value & bits_.attended) - (slot & bits_.attended));
  slot = value;
}

void SimMemory::ClearTail(int page, int tokens) {
  for (int layer = 0; layer < layers_; ++layer) {
    for (int token = tokens; token < page_size_; ++token) Set(page, layer, token, 0);
  }
}

std::string SimMemory::Free(int page) {
  const size_t begin = Slot(page, 0, 0);
  const auto count = static_cast<size_t>(layers_) * static_cast<size_t>(page_size_);
  std::fill_n(slots_.begin() + static_cast<int64_t>(begin), count, kCanary);
  uint64_t weights = 0;
  for (size_t token = 0; token < static_cast<size_t>(page_size_); ++token) {
    weights += kTokenWeights[token];
  }
  std::fill_n(sums_.begin() + static_cast<int64_t>(Band(page, 0)), layers_,
              (kCanary & bits_.attended) * weights);
  if (held_[static_cast<size_t>(page)] == 0) return {};
  return absl::StrCat("page ", page, " is freed while it is in use");
}

void SimMemory::FreeAll() {
  for (size_t page = 0; page < held_.size(); ++page) (void)Free(static_cast<int>(page));
}

std::vector<uint64_t> SimMemory::Read(int page, int count, int begin, int end) const {
  std::vector<uint64_t> values;
  values.reserve(static_cast<size_t>(count) * static_cast<size_t>(end - begin) *
                 static_cast<size_t>(page_size_));
  for (int i = page; i < page + count; ++i) {
    values.insert(values.end(), slots_.begin() + static_cast<int64_t>(Slot(i, begin, 0)),
                  slots_.begin() + static_cast<int64_t>(Slot(i, end, 0)));
  }
  return values;
}

void SimMemory::Hold(std::span<const int> pages) {
  for (const int page : pages) ++held_[static_cast<size_t>(page)];
}

void SimMemory::LetGo(std::span<const int> pages) {
  for (const int page : pages) --held_[static_cast<size_t>(page)];
}

bool SimMemory::AnyHeld() const {
  return std::any_of(held_.begin(), held_.end(), [](int holders) { return holders > 0; });
}

uint64_t SimMemory::Attend(std::span<const int> pages, int tokens, int layer) const {
  const int full = tokens / page_size_;
  uint64_t sum = 0;
  for (int index = 0; index < full; ++index) {
    sum += PageWeight(index) * sums_[Band(pages[static_cast<size_t>(index)], layer)];
  }
  if (tokens % page_size_ == 0) return sum;
  uint64_t rest = 0;
  const uint64_t* const slots = &slots_[Slot(pages[static_cast<size_t>(full)], layer, 0)];
  for (int token = 0; token < tokens % page_size_; ++token) {
    rest += kTokenWeights[static_cast<size_t>(token)] * (slots[token] & bits_.attended);
  }
  return sum + PageWeight(full) * rest;
}

void SimMemory::Forward(std::span<const int> pages, int begin, std::span<uint64_t> x) {
  for (int layer = 0; layer < layers_; ++layer) {
    uint64_t sum = Attend(pages, begin, layer);
    int position = begin;
    for (uint64_t& value : x) {
      const int index = position / page_size_;
      const int token = position % page_size_;
      Set(pages[static_cast<size_t>(index)], layer, token, value);
      sum += PageWeight(index) * kTokenWeights[static_cast<size_t>(token)] * value;
      value = NextLayer(value, sum);
      ++position;
    }
  }
}

void SimMemory::ForwardTogether(std::span<const Part> ranks, int begin, std::span<uint64_t> x) {
  const int page_size = ranks[0].memory->page_size_;
  for (int layer = 0; layer < ranks[0].memory->layers_; ++layer) {
    uint64_t sum = 0;
    for (const Part& rank : ranks) sum += rank.memory->Attend(rank.pages, begin, layer);
    int position = begin;
    for (uint64_t& value : x) {
      const int index = position / page_size;
      const int token = position % page_size;
      const uint64_t weight = PageWeight(index) * kTokenWeights[static_cast<size_t>(token)];
      for (const Part& rank : ranks) {
        SimMemory& memory = *rank.memory;
        const int page = rank.pages[static_cast<size_t>(index)];
        memory.Set(page, layer, token, value);
        sum += weight * (memory.Get(page, layer, token) & memory.bits_.attended);
      }
      value = NextLayer(value, sum);
      ++position;
    }
  }
}

uint64_t SimMemory::Digest(std::span<const int> pages, int tokens) const {
  uint64_t digest = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    digest = digest * 31 + Attend(pages, tokens, layer);
  }
  return digest;
}

std::vector<int> FreedPages::Take(const BlockPool& pool) {
  std::vector<int> freed;
  if (pool.freed_total() == total_) return freed;
  total_ = pool.freed_total();
  times_.resize(static_cast<size_t>(pool.page_count()), 0);
  for (int page = 0; page < pool.page_count(); ++page) {
    uint64_t& times = times_[static_cast<size_t>(page)];
    if (times == pool.times_freed(page)) continue;
    times = pool.times_freed(page);
    freed.push_back(page);
  }
  return freed;
}

// Stands for XXH3 over the bytes; wire.cc's checksum is over real ones.
uint64_t ChecksumOf(std::span<const uint64_t> values) {
  uint64_t sum = values.size();
  for (const uint64_t value : values) sum = (sum ^ value) * 0x9e3779b97f4a7c15ULL + (sum >> 29);
  return sum;
}

}  // namespace baton::sim
