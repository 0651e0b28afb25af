// ---- Products of few rows with a weight ----
//
// A block computes 32 columns of the product, those of two strips of 16 rows of the weight; its
// warps, and the blocks of its cluster, each have a part of the sum. The weight is copied to shared
// memory, and its first copies are on their way before the kernel in front has ended.
// Operands are as memory has them (attend_pages.cu).

#if __CUDA_ARCH__ >= 900

constexpr int kStrip = 16;
constexpr int kMostWarps = 8;
constexpr int kMostRows = 8;
constexpr int kMostThreads = kMostWarps * kWarp;
constexpr int kDepth = 3;  // Steps of a warp's sum that are on their way or computed.

// Not before AwaitLast, unlike a load that the compiler may move.
__device__ inline uint4 LoadAfter(const uint4* from) {
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
}
__device__ inline float LoadPeers(const float* own, unsigned peer) {
  unsigned there;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(peer));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}
// Waits for all threads of the cluster.
__device__ inline void Meet() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// `rows` [count, 8 * eights], at most kMostRows, times the rows of `weights` [columns, 8 * eights],
// plus `bias` (if it is given), goes to `output`; eights are a multiple of 4. If `gated`, the first
// half of the product's columns are gates of the second, as in Gate. Grid: blocks of a cluster,
// strips or pairs of them.
extern "C" __global__ void __launch_bounds__(kMostThreads)
    MultiplyFew(const uint4* rows, int count, const uint4* weights, const Half* bias, int columns,
                int eights, int gated, Half* output) {
  StartNext();
  const int warps = blockDim.x / kWarp;
  const int warp = threadIdx.x / kWarp;
  const int group = threadIdx.x % kWarp / 4;
  const int quarter = threadIdx.x % 4;
  const int given = gated ? columns / 2 : columns;   // Columns of the output,
  const int own = gated ? kStrip : 2 * kStrip;       // and those of a block.
  const int first = blockIdx.y * own;
  const int parts = gridDim.x * warps;
  const int part = blockIdx.x * warps + warp;
  const int begin = static_cast<int>(Index{eights / 4} * part / parts);
  const int end = static_cast<int>(Index{eights / 4} * (part + 1) / parts);
  // Operands: two strips, of each rows `group` and 8 + `group`.
  const uint4* from[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + i / 2 * (gated ? given : kStrip) + i % 2 * 8 + group;
    from[i / 2][i % 2] = weights + Index{row < columns ? row : columns - 1} * eights + quarter;
  }
  // A thread copies and reads places of its own alone, so that nothing waits for other threads.
  __shared__ uint4 memory[kDepth][4][kMostThreads];
  const auto fetch = [&](int step, int stage) {
#pragma unroll
    for (int i = 0; step < end && i < 4; ++i) {
      CopyLater(&memory[stage][i][threadIdx.x], from[i / 2][i % 2] + 4 * step);
    }
    EndGroup();  // Empty ones, too: they are counted.
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) fetch(begin + d, d);
  AwaitLast();
  float sums[2][4] = {};
  int stage = 0;
  for (int step = begin; step < end; ++step) {
    uint4 row = {0, 0, 0, 0};
    if (group < count) row = LoadAfter(rows + Index{group} * eights + 4 * step + quarter);
    AwaitGroups<kDepth - 1>();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 low = memory[stage][2 * s][threadIdx.x];
      const uint4 high = memory[stage][2 * s + 1][threadIdx.x];
      MultiplyAdd(sums[s], low.x, high.x, low.y, high.y, row.x, row.y);
      MultiplyAdd(sums[s], low.z, high.z, low.w, high.w, row.z, row.w);
    }
    fetch(step + kDepth, stage);
    stage = stage + 1 < kDepth ? stage + 1 : 0;
  }
  AwaitGroups<0>();
  __syncthreads();  // The memory is used again.
  using Sums = float[kMostWarps][kMostRows][2 * kStrip];
  static_assert(sizeof(Sums) <= sizeof(memory), "sums fit");
  Sums& all = *reinterpret_cast<Sums*>(memory);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i / 4 * kStrip + i % 4 / 2 * 8 + group;
    all[warp][2 * quarter + i % 2][column] = sums[i / 4][i % 4];
  }
  Meet();
  const auto total = [&](int row, int column) {
    float value = 0;
    for (unsigned peer = 0; peer < gridDim.x; ++peer) {
      for (int w = 0; w < warps; ++w) value += LoadPeers(&all[w][row][column], peer);
    }
    return value;
  };
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < own * count;
       i += gridDim.x * blockDim.x) {
    const int row = i / own;
    const int column = i % own;
    if (first + column >= given) continue;
    float value = total(row, column);
    if (gated) {
      const float gate = Round(value);
      value = Round(gate / (1 + expf(-gate))) * Round(total(row, kStrip + column));
    } else if (bias != nullptr) {
      value += Low(bias[first + column]);
    }
    output[Index{row} * given + first + column] = static_cast<Half>(Pack(value, 0.0f));
  }
  Meet();  // Others have read this block's memory.
}

#endif  // __CUDA_ARCH__
