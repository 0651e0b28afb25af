// Intel's tiles: their configuration, and the sums of a pass of rows by a panel of outputs.
// Part of amx.cc, amx_fp8.cc and amx_attention.cc.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace baton::kernels {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileOutputs = 16;
static_assert(kPairPass == 2 * kTileRows);

constexpr long kRowBytes = 64;  // In every tile.

// Tiles 0 to 3 are sums of two rows of tiles by two columns; 4 and 5 rows of x; 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The first tile of a pass has `upper` rows, the second `lower`; 0: there is no second.
inline void Configure(int upper, int lower) {
  TileConfig config;
  const auto set = [&config](int tile, int rows) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.column_bytes[tile] = 64;
  };
  for (const int tile : {0, 1, 4}) set(tile, upper);
  for (const int tile : {2, 3, 5}) set(tile, lower > 0 ? lower : 1);
  for (const int tile : {6, 7}) set(tile, kTileRows);
  _tile_loadconfig(&config);
}

struct alignas(64) Tile {
  float rows[kTileRows][kTileOutputs];
};

// The sums of a pass of rows by a panel: the upper rows left and right, then the lower ones. They
// are side by side until all inputs are added up. Rejected: to keep them in y, whose rows are often
// a power of two apart, and so in the same sets of the caches.
struct Sums {
  Tile tiles[4];
};

// A pass's `rows` sums to their place in y, which may lack columns.
inline void Store(const Sums& sums, int rows, int columns, float* y, size_t y_stride) {
  const int left = std::min(columns, kTileOutputs);
  const int right = std::clamp(columns - kTileOutputs, 0, kTileOutputs);
  for (int row = 0; row < rows; ++row, y += y_stride) {
    const Tile* const tiles = &sums.tiles[row < kTileRows ? 0 : 2];
    if (right == kTileOutputs) {  // Sizes that the compiler knows.
      std::memcpy(y, tiles[0].rows[row % kTileRows], sizeof(tiles[0].rows[0]));
      std::memcpy(y + kTileOutputs, tiles[1].rows[row % kTileRows], sizeof(tiles[1].rows[0]));
      continue;
    }
    std::copy_n(tiles[0].rows[row % kTileRows], left, y);
    std::copy_n(tiles[1].rows[row % kTileRows], right, y + kTileOutputs);
  }
}

}  // namespace
}  // namespace baton::kernels
