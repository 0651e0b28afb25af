// Writes a model directory with random weights: for tests, benchmarks and `baton model make`.
#ifndef COMMON_MODEL_MAKE_MODEL_H_
#define COMMON_MODEL_MAKE_MODEL_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/safetensors.h"

namespace baton {

struct RandomModelOptions {
  std::string architecture = "Qwen3ForCausalLM";
  int hidden_size = 64;
  int intermediate_size = 128;  // In dense layers and Mixtral's and MiniMax's experts.
  // For DeepSeek head_dim is that of values and of keys without rope, from which the ranks follow.
  // For architectures with experts.
  int num_experts = 8;
  int num_experts_per_tok = 2;
  int moe_intermediate_size = 32;  // Qwen3's, DeepSeek's and GLM's.
  int decoder_sparse_step = 1;
  std::vector<int> mlp_only_layers;
  int num_hidden_layers = 4;
  int num_attention_heads = 4;
  int num_key_value_heads = 2;
  int head_dim = 16;
  int vocab_size = 300;
  int max_position_embeddings = 16384;
  double rope_theta = 10000;
  int sliding_window = 0;            // Mistral's, Mixtral's, Phi-3's; 0: none.
  bool biases = false;               // Llama's attention_bias and mlp_bias, Qwen3's attention_bias.
  bool llama3_rope_scaling = false;  // Factor 8 over a quarter of max_position_embeddings.
  bool tie_word_embeddings = false;
  DType dtype = DType::kF32;  // F32, BF16 or F16.
  // Projections as FP8 with scales, as quantization_config then says; or the float32 values that
  // those are worth, all else the same.
  enum class Scales { kBlocks, kRows, kTensor };
  Scales fp8_scales = Scales::kBlocks;
  bool fp8 = false;
  bool fp8_widened = false;
  int shards = 1;  // More than one also writes model.safetensors.index.json.
  uint64_t seed = 1;
};

// Creates the directory `path` if need be and writes config.json, generation_config.json, the
// weights and, for vocabularies of at least 300, a byte-level tokenizer.json (id = byte, then
// <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258) with tokenizer_config.json. The same options
// give the same bytes. InvalidArgument names an option that no model can have.
//
// Weights are scaled so that every sublayer contributes about equally and logits spread over
// several units: greedy continuations vary, and top logits are rarely near ties.
absl::Status MakeRandomModel(const std::string& path, const RandomModelOptions& options);

// Rounding float32 to the 16-bit formats of checkpoints, to nearest even. For writers; readers
// convert in bulk through the engine.

// Finite values only.
inline uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Finite values below 65,520; smaller than 2^-24 rounds to zero.
inline uint16_t FloatToF16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1).
  // One unit in the last place is 2^(exponent - 11), or 2^-24 among the subnormals.
  const int unit = std::max(exponent - 11, -24);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // Normal numbers have at least 1024 steps, the hidden bit, which adds one to the exponent field.
  const auto exponent_field = static_cast<uint32_t>(unit + 24);
  return static_cast<uint16_t>(sign | ((exponent_field << 10) + steps));
}

}  // namespace baton

#endif  // COMMON_MODEL_MAKE_MODEL_H_
