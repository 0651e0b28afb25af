// Widens FP8 numbers to bfloat16 by looking their bytes up. For sources that are compiled with
// AVX512_VBMI.

namespace baton::kernels {
namespace {

// The bytes of the bfloat16 numbers that the 128 FP8 numbers without a sign are: all are exact.
struct WidenTables {
  alignas(64) unsigned char high[128] = {};
  alignas(64) unsigned char low[128] = {};

  constexpr WidenTables() {
    for (int code = 1; code < 128; ++code) {
      int exponent = (code >> 3) + 120;
      int mantissa = (code & 7) << 4;
      if (code < 8) {  // Subnormal: its highest bit becomes the hidden one.
        const int highest = code >= 4 ? 2 : code >= 2 ? 1 : 0;
        exponent = 118 + highest;
        mantissa = (code << (7 - highest)) & 0x7f;
      }
      const int bits = exponent << 7 | mantissa;
      high[code] = static_cast<unsigned char>(bits >> 8);
      low[code] = static_cast<unsigned char>(bits & 0xff);
    }
  }
};
constexpr WidenTables kWiden;

// Widens a panel's pairs of two inputs, in the order of PackPairedRows(E4m3).
class Widener {
 public:
  void operator()(const char* weights, __m512bh& left, __m512bh& right) const {
    const __m512i codes = _mm512_loadu_si512(weights);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
    constexpr int kOrAnd = 0xf8;  // The first or both others.
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign_, kOrAnd);
    const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
    left = (__m512bh)_mm512_unpacklo_epi8(low, high);
    right = (__m512bh)_mm512_unpackhi_epi8(low, high);
  }

 private:
  const __m512i high_[2] = {_mm512_load_si512(kWiden.high), _mm512_load_si512(kWiden.high + 64)};
  const __m512i low_[2] = {_mm512_load_si512(kWiden.low), _mm512_load_si512(kWiden.low + 64)};
  const __m512i sign_ = _mm512_set1_epi8(static_cast<char>(0x80));
};

}  // namespace
}  // namespace baton::kernels
