// Baton's kernels for GPUs, in bfloat16 with sums in float32. Compiled when a model is loaded, by
// NVRTC, for this model and this GPU, as one source: this file, products.cu and attend_pages.cu.
// The compiler's options (cuda_kernels.cc) define HEAD_DIM, HEADS and KV_HEADS (those of one rank),
// PAGE_SIZE and MOST_SHARES, if the heads fit at all. No header is included: NVRTC has none on a
// machine that only runs Baton.
//
// Roundings are those of libtorch's operators for the same model: each operation that Hugging Face
// rounds is rounded here.

typedef unsigned short Half;  // The bits of a bfloat16.
typedef long long Index;

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kUnseen = -1e30f;

__device__ inline float Low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float High(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline unsigned Pack(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float Round(float value) { return Low(Pack(value, 0.0f)); }

__device__ inline float SumOfWarp(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAll, value, lanes);
  return value;
}

// From compute capability 9.0 on, a kernel starts while the one before it ends. Each kernel calls
// this first (products.cu loads weights before it): what kernels before it write is there after it,
// and the next kernel may start. A kernel that follows has waited for all that are before this one.
__device__ inline void StartNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void AwaitLast() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void Begin() {
  StartNext();
  AwaitLast();
}

// Adds a product of 16x16 and 16x8 matrices to `sums` (PTX: mma.m16n8k16).
__device__ inline void MultiplyAdd(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                   unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Copies to shared memory that go on while the thread computes, in groups.
__device__ inline void CopyLater(uint4* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ inline void EndGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when all groups but the last `kLater` have arrived.
template <int kLater>
__device__ inline void AwaitGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Eight bfloat16, a load of a thread.
struct Eight {
  float values[8];
};
__device__ inline Eight Widen(const uint4& bits) {
  return {{Low(bits.x), High(bits.x), Low(bits.y), High(bits.y), Low(bits.z), High(bits.z),
           Low(bits.w), High(bits.w)}};
}
__device__ inline Eight Load(const uint4* from) { return Widen(*from); }
__device__ inline void Store(uint4* to, const Eight& eight) {
  const float* const v = eight.values;
  *to = {Pack(v[0], v[1]), Pack(v[2], v[3]), Pack(v[4], v[5]), Pack(v[6], v[7])};
}

// `x` plus `added` (if it is given) goes to `sum`; normalised and times `weight`, to `normed`. All
// are rows of 8 * `eights` columns. One block for each row.
extern "C" __global__ void AddNorm(const uint4* x, const uint4* added, const uint4* weight,
                                   float eps, int eights, uint4* sum, uint4* normed) {
  Begin();
  const Index row = Index{blockIdx.x} * eights;
  float squares = 0;
  for (int i = threadIdx.x; i < eights; i += blockDim.x) {
    Eight own = Load(x + row + i);
    if (added != nullptr) {
      const Eight more = Load(added + row + i);
      for (int k = 0; k < 8; ++k) own.values[k] = Round(own.values[k] + more.values[k]);
      Store(sum + row + i, own);
    }
    for (int k = 0; k < 8; ++k) squares += own.values[k] * own.values[k];
  }
  __shared__ float of_warps[kWarp];
  squares = SumOfWarp(squares);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = squares;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  squares = SumOfWarp(lane < blockDim.x / kWarp ? of_warps[lane] : 0.0f);
  const float scale = rsqrtf(squares / (8 * eights) + eps);
  const uint4* const from = added != nullptr ? sum : x;  // What this thread has written itself.
  for (int i = threadIdx.x; i < eights; i += blockDim.x) {
    Eight own = Load(from + row + i);
    const Eight factors = Load(weight + i);
    for (int k = 0; k < 8; ++k) {
      own.values[k] = Round(own.values[k] * scale) * factors.values[k];
    }
    Store(normed + row + i, own);
  }
}

// Rows [gate, up] become silu(gate) * up. One thread for eight columns of a row.
extern "C" __global__ void Gate(const uint4* gate_up, int eights, Index count, uint4* inner) {
  Begin();
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Index row = i / eights;
  const uint4* const from = gate_up + 2 * row * eights + i % eights;
  Eight gate = Load(from);
  const Eight up = Load(from + eights);
  for (int k = 0; k < 8; ++k) {
    const float x = gate.values[k];
    gate.values[k] = Round(x / (1 + expf(-x))) * up.values[k];
  }
  Store(inner + i, gate);
}

// Cosines and sines of positions times `frequencies`, rounded where Rotary::Angles rounds, as [2,
// tokens, half]. One thread for each.
extern "C" __global__ void Angles(const Index* positions, const float* frequencies, int half,
                                  Index tokens, float magnitude, Half* turns) {
  Begin();
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= tokens * half) return;
  const float angle = static_cast<float>(positions[i / half]) * frequencies[i % half];
  const auto cosine = static_cast<float>(cos(static_cast<double>(angle))) * magnitude;
  const auto sine = static_cast<float>(sin(static_cast<double>(angle))) * magnitude;
  turns[i] = static_cast<Half>(Pack(cosine, 0.0f));
  turns[tokens * half + i] = static_cast<Half>(Pack(sine, 0.0f));
}

#ifdef HEAD_DIM  // The model's heads fit the kernels.

constexpr int kGroup = HEADS / KV_HEADS;
constexpr int kHalf = HEAD_DIM / 2;

// A row is [queries, keys, values]. Queries and keys are normalised (if there are weights for
// that) and turned, and go to `query` and `key`. Keys and values go to their pages, unless the
// page is negative. One warp for each head.
extern "C" __global__ void PlaceHeads(const unsigned* qkv, const unsigned* q_norm,
                                      const unsigned* k_norm, float eps, const unsigned* cosines,
                                      const unsigned* sines, const Index* pages, const Index* slots,
                                      Index tokens, unsigned* query, unsigned* key,
                                      unsigned* key_pages, unsigned* value_pages,
                                      Index page_stride) {
  Begin();
  constexpr int kRowHeads = HEADS + 2 * KV_HEADS;
  constexpr int kPairs = HEAD_DIM / 2;   // Words of a head.
  constexpr int kTurned = kHalf / 2;     // Words of its first half.
  constexpr int kSteps = (kTurned + kWarp - 1) / kWarp;
  const Index warp = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (warp >= tokens * kRowHeads) return;
  const Index token = warp / kRowHeads;
  const int head = static_cast<int>(warp % kRowHeads);
  const unsigned* const from = qkv + warp * kPairs;
  const Index page = pages[token];
  // Words from the first of the layer's keys, or values, to this head's row.
  const auto in_page = [&](int kv_head) {
    return page * (page_stride / 2) + (Index{kv_head} * PAGE_SIZE + slots[token]) * kPairs;
  };
  if (head >= HEADS + KV_HEADS) {
    if (page < 0) return;
    unsigned* const to = value_pages + in_page(head - HEADS - KV_HEADS);
    for (int i = lane; i < kPairs; i += kWarp) to[i] = from[i];
    return;
  }
  float low[2 * kSteps], high[2 * kSteps];
  float squares = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int i = step * kWarp + lane;
    const unsigned first = i < kTurned ? from[i] : 0;
    const unsigned second = i < kTurned ? from[kTurned + i] : 0;
    low[2 * step] = Low(first);
    low[2 * step + 1] = High(first);
    high[2 * step] = Low(second);
    high[2 * step + 1] = High(second);
    for (int k = 2 * step; k < 2 * step + 2; ++k) squares += low[k] * low[k] + high[k] * high[k];
  }
  const bool is_query = head < HEADS;
  const unsigned* const norm = is_query ? q_norm : k_norm;
  if (norm != nullptr) {
    const float scale = rsqrtf(SumOfWarp(squares) / HEAD_DIM + eps);
    for (int step = 0; step < kSteps; ++step) {
      const int i = step * kWarp + lane;
      if (i >= kTurned) break;
      const unsigned first = norm[i];
      const unsigned second = norm[kTurned + i];
      low[2 * step] = Round(Round(low[2 * step] * scale) * Low(first));
      low[2 * step + 1] = Round(Round(low[2 * step + 1] * scale) * High(first));
      high[2 * step] = Round(Round(high[2 * step] * scale) * Low(second));
      high[2 * step + 1] = Round(Round(high[2 * step + 1] * scale) * High(second));
    }
  }
  const int kv_head = head - HEADS;
  unsigned* const to = is_query ? query + (token * HEADS + head) * kPairs
                                : key + (token * KV_HEADS + kv_head) * kPairs;
  unsigned* const stored = is_query || page < 0 ? nullptr : key_pages + in_page(kv_head);
  for (int step = 0; step < kSteps; ++step) {
    const int i = step * kWarp + lane;
    if (i >= kTurned) break;
    const unsigned cosine = cosines[token * kTurned + i];
    const unsigned sine = sines[token * kTurned + i];
    float turned[4];
    for (int k = 0; k < 2; ++k) {
      const float c = k == 0 ? Low(cosine) : High(cosine);
      const float s = k == 0 ? Low(sine) : High(sine);
      const float l = low[2 * step + k];
      const float h = high[2 * step + k];
      turned[k] = Round(l * c) - Round(h * s);
      turned[2 + k] = Round(h * c) + Round(l * s);
    }
    const unsigned first = Pack(turned[0], turned[1]);
    const unsigned second = Pack(turned[2], turned[3]);
    to[i] = first;
    to[kTurned + i] = second;
    if (stored != nullptr) {
      stored[i] = first;
      stored[kTurned + i] = second;
    }
  }
}

// ---- A chunk's attention in parts ----

// Merges a part into `output` [rows, HEADS, HEAD_DIM] float32 by the logarithms of the sums, which
// are [HEADS, rows]. One thread for eight columns.
extern "C" __global__ void MergePart(const uint4* part, const float* part_sum, Index rows,
                                     const float* before, float4* output, float* after) {
  Begin();
  constexpr int kEights = HEAD_DIM / 8;
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * HEADS * kEights) return;
  const Index row = i / (HEADS * kEights);
  const Index head = i / kEights % HEADS;
  const Index at = head * rows + row;
  const float old_sum = before[at];
  const float new_sum = part_sum[at];
  const float top = fmaxf(old_sum, new_sum);
  const float kept = expf(old_sum - top);
  const float added = expf(new_sum - top);
  const float both = kept + added;
  if (i % kEights == 0) after[at] = top + logf(both);
  const Eight more = Load(part + i);
  float4 values[2] = {output[2 * i], output[2 * i + 1]};
  float* const v = reinterpret_cast<float*>(values);
  for (int k = 0; k < 8; ++k) v[k] = v[k] * (kept / both) + more.values[k] * (added / both);
  output[2 * i] = values[0];
  output[2 * i + 1] = values[1];
}

#endif  // HEAD_DIM
