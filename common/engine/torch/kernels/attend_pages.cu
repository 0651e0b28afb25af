// ---- Attention of single tokens over pages ----
//
// A block takes a share of a row's keys and up to eight query heads that read the same KV head.
// A warp computes 16 keys at a time, by two products: heads times keys gives scores, and values
// times weights is added to the output. Both take operands as memory has them: which column of a
// head is which column of a product does not matter, as long as both operands agree, so that a
// thread's operands are whole loads of 16 bytes. The next keys are copied to shared memory
// meanwhile: a GPU's memory is busy only with more on its way than registers hold. Each warp keeps
// its own highest scores and sums. They are merged at the end of the block, and the shares of a row
// by JoinShares.

#ifdef HEAD_DIM

constexpr int kTileKeys = 16;
constexpr int kTileHeads = 8;
constexpr int kTiles = (kGroup + kTileHeads - 1) / kTileHeads;
constexpr int kStages = 3;  // Tiles of a warp that are on their way, and the one that is computed.
constexpr int kKeyLoads = HEAD_DIM / 32;    // Loads of a thread for one key,
constexpr int kValueLoads = HEAD_DIM / 64;  // and for one value.
constexpr int kWords = HEAD_DIM / 16;       // Pairs of columns that a thread has of a value.
constexpr int kEights = HEAD_DIM / 8;
constexpr int kTileEights = kTileKeys * kEights;
constexpr int kTileBytes = 2 * kTileEights * sizeof(uint4);
constexpr int kMemory = 48 << 10;
constexpr int kWarps = kMemory / (kStages * kTileBytes);
constexpr int kThreads = kWarp * kWarps;

// Keys and values of a tile, rows of kEights. Where an eight is depends on its row, so that the
// lanes that read together read from different banks.
struct Tile {
  uint4 keys[kTileEights];
  uint4 values[kTileEights];
};
__device__ inline int PlaceOfKey(int row, int eight) {
  return row * kEights + (eight ^ (row % 2 * 4));
}
__device__ inline int PlaceOfValue(int row, int eight) {
  return row * kEights + (eight ^ (row & 6));
}

// The first of the two columns that pair `word` of a thread is.
__device__ inline int ColumnOf(int group, int word) {
  return 64 * (word / 4) + 8 * group + 2 * (word % 4);
}

// What a warp knows of its keys. A lane is (lane / 4, lane % 4), a group and a pair: of `output`,
// it has columns of heads 2 * pair + [0, 2), as [pair of columns][column * 2 + head]; all else is
// of the head that its group is.
struct Seen {
  float output[kWords][4];
  float highest;
  float sum;  // Of this lane's keys.
};

// `first` is the tile's first key.
__device__ inline void AttendTile(const Tile& tile, const uint4* query, Index first, Index lowest,
                                  Index end, float log2_scale, Seen& seen) {
  const int group = threadIdx.x % kWarp / 4;
  const int pair = threadIdx.x % 4;
  float scores[2][4] = {};  // [half of the keys][key]; [2] and [3] are of heads that are not there.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
      const uint4 q = query[i];
      const uint4 key = tile.keys[PlaceOfKey(8 * half + group, 4 * i + pair)];
      MultiplyAdd(scores[half], q.x, 0, q.y, 0, key.x, key.y);
      MultiplyAdd(scores[half], q.z, 0, q.w, 0, key.z, key.w);
    }
  }
  float top = kUnseen;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Index at = first + 8 * half + 2 * pair + k;
      scores[half][k] = at >= lowest && at < end ? scores[half][k] * log2_scale : kUnseen;
      top = fmaxf(top, scores[half][k]);
    }
  }
  top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
  if (__any_sync(kAll, top > seen.highest)) {
    top = fmaxf(top, seen.highest);
    const float kept = exp2f(seen.highest - top);
    seen.highest = top;
    seen.sum *= kept;
    const float kept_of[2] = {__shfl_sync(kAll, kept, 8 * pair),
                              __shfl_sync(kAll, kept, 8 * pair + 4)};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) seen.output[w][i] *= kept_of[i % 2];
    }
  }
  unsigned weights[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float low = exp2f(scores[half][0] - seen.highest);
    const float high = exp2f(scores[half][1] - seen.highest);
    seen.sum += low + high;
    weights[half] = Pack(low, high);
  }
#pragma unroll
  for (int i = 0; i < kValueLoads; ++i) {
    unsigned words[4][4];  // Of keys 2 * pair, 2 * pair + 1, and those 8 behind them.
#pragma unroll
    for (int key = 0; key < 4; ++key) {
      const int row = 8 * (key / 2) + 2 * pair + key % 2;
      const uint4 load = tile.values[PlaceOfValue(row, 8 * i + group)];
      words[key][0] = load.x;
      words[key][1] = load.y;
      words[key][2] = load.z;
      words[key][3] = load.w;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      constexpr unsigned kLows = 0x5410;
      constexpr unsigned kHighs = 0x7632;
      MultiplyAdd(seen.output[4 * i + w], __byte_perm(words[0][w], words[1][w], kLows),
                  __byte_perm(words[0][w], words[1][w], kHighs),
                  __byte_perm(words[2][w], words[3][w], kLows),
                  __byte_perm(words[2][w], words[3][w], kHighs), weights[0], weights[1]);
    }
  }
}

// Grid: shares of the keys, kv_heads * kTiles, rows. `query` is [rows, HEADS, HEAD_DIM]; row r has
// `lengths`[r] keys in the pages `ids`[starts[r] ...]. `partial` is [rows, HEADS, shares,
// HEAD_DIM], `sums` [rows, HEADS, shares, 2]: the highest score, and the sum of exponentials.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    AttendPages(const Half* query, const Half* key_pages, const Half* value_pages,
                Index page_stride, const Index* starts, const Index* ids, const Index* lengths,
                float scale, int window, float* partial, float* sums) {
  Begin();
  const int share = blockIdx.x;
  const int shares = gridDim.x;
  const int kv_head = blockIdx.y / kTiles;
  const int first_head = blockIdx.y % kTiles * kTileHeads;  // In the group.
  const int heads = kGroup - first_head < kTileHeads ? kGroup - first_head : kTileHeads;
  const Index row = blockIdx.z;
  const int warp = threadIdx.x / kWarp;
  const int group = threadIdx.x % kWarp / 4;
  const int pair = threadIdx.x % 4;

  const Index length = lengths[row];
  const Index lowest = window > 0 && length > window ? length - window : 0;
  const Index first_tile = lowest / kTileKeys;
  const Index tiles = (length + kTileKeys - 1) / kTileKeys - first_tile;
  const Index each = (tiles + shares - 1) / shares;
  const Index begin = (first_tile + share * each) * kTileKeys;
  const Index end = begin + each * kTileKeys < length ? begin + each * kTileKeys : length;
  const Index* const own_ids = ids + starts[row];
  const Index first_of_row = row * HEADS + kv_head * kGroup + first_head;

  uint4 queries[kKeyLoads];
#pragma unroll
  for (int i = 0; i < kKeyLoads; ++i) {
    const Half* const own = query + (first_of_row + group) * HEAD_DIM + 32 * i + 8 * pair;
    queries[i] = group < heads ? *reinterpret_cast<const uint4*>(own) : uint4{0, 0, 0, 0};
  }
  __shared__ Tile memory[kStages][kWarps];
  constexpr int kStride = kWarps * kTileKeys;
  const Index first = begin + warp * kTileKeys;
  Index page = first < end ? own_ids[first / PAGE_SIZE] : 0;  // That of the next tile to fetch.
  const auto fetch = [&](Index base, int stage) {
    if (base < end) {
      // Keys behind the end are worth nothing, but what is there may be no numbers.
      const int last = end - base < kTileKeys ? static_cast<int>(end - base) - 1 : kTileKeys - 1;
      const Index from =
          page * page_stride + (Index{kv_head} * PAGE_SIZE + base % PAGE_SIZE) * HEAD_DIM;
      Tile& to = memory[stage][warp];
#pragma unroll
      for (int i = threadIdx.x % kWarp; i < kTileEights; i += kWarp) {
        const int key = i / kEights;
        const int eight = i % kEights;
        const Index at = from + (key < last ? key : last) * HEAD_DIM + eight * 8;
        CopyLater(&to.keys[PlaceOfKey(key, eight)], key_pages + at);
        CopyLater(&to.values[PlaceOfValue(key, eight)], value_pages + at);
      }
      if (base + kStride < end) page = own_ids[(base + kStride) / PAGE_SIZE];
    }
    EndGroup();  // Empty ones, too: they are counted.
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(first + stage * kStride, stage);
  Seen seen = {{}, kUnseen, 0};
  int stage = 0;
  for (Index base = first; base < end; base += kStride) {
    AwaitGroups<kStages - 2>();
    __syncwarp();  // All lanes' copies are there, and all have read the tile before.
    fetch(base + (kStages - 1) * kStride, (stage + kStages - 1) % kStages);
    AttendTile(memory[stage][warp], queries, base, lowest, end, scale * 1.44269504088896f, seen);
    stage = (stage + 1) % kStages;
  }
  AwaitGroups<0>();
  __syncthreads();  // The memory is used again.

  struct Outputs {
    float values[kWarps][kTileHeads][HEAD_DIM];
    float highest[kWarps][kTileHeads];
    float sums[kWarps][kTileHeads];
  };
  static_assert(sizeof(Outputs) <= sizeof(memory), "outputs fit");
  Outputs& all = *reinterpret_cast<Outputs*>(memory);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      all.values[warp][2 * pair + i % 2][ColumnOf(group, w) + i / 2] = seen.output[w][i];
    }
  }
  seen.sum += __shfl_xor_sync(kAll, seen.sum, 1);
  seen.sum += __shfl_xor_sync(kAll, seen.sum, 2);
  if (pair == 0) {
    all.highest[warp][group] = seen.highest;
    all.sums[warp][group] = seen.sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * HEAD_DIM; i += kThreads) {
    const int h = i / HEAD_DIM;
    const int column = i % HEAD_DIM;
    float top = kUnseen;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, all.highest[w][h]);
    float value = 0;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(all.highest[w][h] - top);
      value += all.values[w][h][column] * weight;
      total += all.sums[w][h] * weight;
    }
    const Index at = (first_of_row + h) * shares + share;
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
  Begin();
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

#endif  // HEAD_DIM
