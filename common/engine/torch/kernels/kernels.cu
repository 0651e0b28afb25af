// Baton's kernels for GPUs, in bfloat16 with sums in float32. Compiled when a model is loaded, by
// NVRTC, for this model and this GPU. The compiler's options (cuda_kernels.cc) define HEAD_DIM,
// HEADS and KV_HEADS (those of one rank), PAGE_SIZE and MOST_SHARES, if the heads fit at all. No
// header is included: NVRTC has none on a machine that only runs Baton.
//
// Roundings are those of libtorch's operators for the same model: each operation that Hugging Face
// rounds is rounded here.

typedef unsigned short Half;  // The bits of a bfloat16.
typedef long long Index;

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kUnseen = -1e30f;

__device__ inline float Wide(unsigned bits) { return __uint_as_float(bits << 16); }
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

// ---- Attention of single tokens over pages ----
//
// A block takes a share of a row's keys and up to four query heads that read the same KV head.
// HEAD_DIM / 16 neighbouring lanes make a unit, which works on one key: each lane has 16 columns,
// as two loads of eight. The next keys are copied to shared memory meanwhile: a GPU's memory is
// busy only with more on its way than registers hold. Each unit keeps its own highest score and
// sum. They are merged at the end of the block, and the shares of a row by JoinShares.

constexpr int kUnitLanes = HEAD_DIM / 16;
constexpr int kThreads = 128;
constexpr int kUnits = kThreads / kUnitLanes;
constexpr int kTileHeads = kGroup < 4 ? kGroup : 4;
constexpr int kTiles = (kGroup + kTileHeads - 1) / kTileHeads;
constexpr int kStages = 5;  // Keys of a unit that are on their way, and the one that is computed.

__device__ inline int ColumnOf(int lane, int i) {
  return (i < 8 ? 0 : kHalf) + lane * 8 + i % 8;
}
__device__ inline void Widen(const uint4& low, const uint4& high, float* values) {
  const Eight first = Widen(low);
  const Eight second = Widen(high);
  for (int i = 0; i < 8; ++i) {
    values[i] = first.values[i];
    values[8 + i] = second.values[i];
  }
}

// Copies to shared memory that go on while the thread computes, in groups.
__device__ inline void CopyLater(uint4* to, const Half* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
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

// Grid: shares of the keys, kv_heads * kTiles, rows. `query` is [rows, HEADS, HEAD_DIM]; row r has
// `lengths`[r] keys in the pages `ids`[starts[r] ...]. `partial` is [rows, HEADS, shares,
// HEAD_DIM], `sums` [rows, HEADS, shares, 2]: the highest score, and the sum of exponentials.
extern "C" __global__ void __launch_bounds__(kThreads, 3)
    AttendPages(const Half* query, const Half* key_pages, const Half* value_pages,
                Index page_stride, const Index* starts, const Index* ids, const Index* lengths,
                float scale, int window, float* partial, float* sums) {
  const int share = blockIdx.x;
  const int shares = gridDim.x;
  const int kv_head = blockIdx.y / kTiles;
  const int first_head = blockIdx.y % kTiles * kTileHeads;  // In the group.
  const Index row = blockIdx.z;
  const int lane = threadIdx.x % kUnitLanes;
  const int unit = threadIdx.x / kUnitLanes;

  const Index length = lengths[row];
  const Index lowest = window > 0 && length > window ? length - window : 0;
  const Index each = (length - lowest + shares - 1) / shares;
  const Index begin = lowest + share * each;
  const Index end = begin + each < length ? begin + each : length;
  const Index* const own_ids = ids + starts[row];

  const float log2_scale = scale * 1.44269504088896f;
  float queries[kTileHeads][16], output[kTileHeads][16], highest[kTileHeads], sum[kTileHeads];
  for (int h = 0; h < kTileHeads; ++h) {
    const bool real = first_head + h < kGroup;
    const int head = kv_head * kGroup + (real ? first_head + h : 0);
    const Half* const from = query + (row * HEADS + head) * HEAD_DIM;
    const uint4* const own = reinterpret_cast<const uint4*>(from);
    Widen(own[lane], own[kHalf / 8 + lane], queries[h]);
    for (int i = 0; i < 16; ++i) {
      queries[h][i] = real ? queries[h][i] * log2_scale : 0.0f;
      output[h][i] = 0;
    }
    highest[h] = kUnseen;
    sum[h] = 0;
  }
  // A thread copies and reads places of its own alone, so that nothing waits for other threads.
  __shared__ uint4 memory[kStages][4][kThreads];
  const auto fetch = [&](Index base, int stage) {
    const Index at = base + unit;
    if (at < end) {
      const Index offset = own_ids[at / PAGE_SIZE] * page_stride +
                           (Index{kv_head} * PAGE_SIZE + at % PAGE_SIZE) * HEAD_DIM + lane * 8;
      CopyLater(&memory[stage][0][threadIdx.x], key_pages + offset);
      CopyLater(&memory[stage][1][threadIdx.x], key_pages + offset + kHalf);
      CopyLater(&memory[stage][2][threadIdx.x], value_pages + offset);
      CopyLater(&memory[stage][3][threadIdx.x], value_pages + offset + kHalf);
    }
    EndGroup();  // Empty ones, too: they are counted.
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(begin + stage * kUnits, stage);
  int stage = 0;
  for (Index base = begin; base < end; base += kUnits) {
    AwaitGroups<kStages - 2>();
    fetch(base + (kStages - 1) * kUnits, (stage + kStages - 1) % kStages);
    const bool seen = base + unit < end;
    float wide[16];
    float scores[kTileHeads];
    Widen(memory[stage][0][threadIdx.x], memory[stage][1][threadIdx.x], wide);
    for (int h = 0; h < kTileHeads; ++h) {
      float score = 0;
      for (int i = 0; i < 16; ++i) score += queries[h][i] * wide[i];
      for (int lanes = kUnitLanes / 2; lanes > 0; lanes /= 2) {
        score += __shfl_xor_sync(kAll, score, lanes);
      }
      scores[h] = score;
    }
    Widen(memory[stage][2][threadIdx.x], memory[stage][3][threadIdx.x], wide);
    for (int h = 0; seen && h < kTileHeads; ++h) {  // Unseen places hold anything.
      if (scores[h] > highest[h]) {
        const float kept = exp2f(highest[h] - scores[h]);
        highest[h] = scores[h];
        sum[h] *= kept;
        for (int i = 0; i < 16; ++i) output[h][i] *= kept;
      }
      const float weight = exp2f(scores[h] - highest[h]);
      sum[h] += weight;
      for (int i = 0; i < 16; ++i) output[h][i] += weight * wide[i];
    }
    stage = (stage + 1) % kStages;
  }
  AwaitGroups<0>();
  __syncthreads();  // The memory is used again.

  // [unit][head][HEAD_DIM]
  static_assert(sizeof(float) * kUnits * kTileHeads * HEAD_DIM <= sizeof(memory), "outputs fit");
  float* const all_outputs = reinterpret_cast<float*>(memory);
  __shared__ float all_highest[kUnits][kTileHeads], all_sums[kUnits][kTileHeads];
  for (int h = 0; h < kTileHeads; ++h) {
    float* const own = all_outputs + (unit * kTileHeads + h) * HEAD_DIM;
    for (int i = 0; i < 16; ++i) own[ColumnOf(lane, i)] = output[h][i];
    if (lane == 0) {
      all_highest[unit][h] = highest[h];
      all_sums[unit][h] = sum[h];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTileHeads * HEAD_DIM; i += kThreads) {
    const int h = i / HEAD_DIM;
    const int column = i % HEAD_DIM;
    if (first_head + h >= kGroup) break;
    float top = kUnseen;
    for (int u = 0; u < kUnits; ++u) top = fmaxf(top, all_highest[u][h]);
    float value = 0;
    float total = 0;
    for (int u = 0; u < kUnits; ++u) {
      const float weight = exp2f(all_highest[u][h] - top);
      value += all_outputs[(u * kTileHeads + h) * HEAD_DIM + column] * weight;
      total += all_sums[u][h] * weight;
    }
    const Index at = (row * HEADS + kv_head * kGroup + first_head + h) * shares + share;
    partial[at * HEAD_DIM + column] = value;
    if (column == 0) {
      sums[2 * at] = top;
      sums[2 * at + 1] = total;
    }
  }
}

// One block for each row and head, one thread for each column. A row without keys is zeros.
extern "C" __global__ void JoinShares(const float* partial, const float* sums, int shares,
                                      Half* output) {
  const Index first = Index{blockIdx.x} * shares;
  __shared__ float weights[MOST_SHARES];
  for (int i = threadIdx.x; i < shares; i += HEAD_DIM) weights[i] = sums[2 * (first + i)];
  __syncthreads();
  float top = kUnseen;
  for (int i = 0; i < shares; ++i) top = fmaxf(top, weights[i]);
  __syncthreads();
  __shared__ float totals[MOST_SHARES];
  for (int i = threadIdx.x; i < shares; i += HEAD_DIM) {
    weights[i] = exp2f(weights[i] - top);
    totals[i] = weights[i] * sums[2 * (first + i) + 1];
  }
  __syncthreads();
  float value = 0;
  float total = 0;
#pragma unroll 8
  for (int i = 0; i < shares; ++i) {
    value += partial[(first + i) * HEAD_DIM + threadIdx.x] * weights[i];
    total += totals[i];
  }
  const float given = total > 0 ? value / total : 0.0f;
  output[Index{blockIdx.x} * HEAD_DIM + threadIdx.x] = static_cast<Half>(Pack(given, 0.0f));
}

// ---- A chunk's attention in parts ----

// Merges a part into `output` [rows, HEADS, HEAD_DIM] float32 by the logarithms of the sums, which
// are [HEADS, rows]. One thread for eight columns.
extern "C" __global__ void MergePart(const uint4* part, const float* part_sum, Index rows,
                                     const float* before, float4* output, float* after) {
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
