#include "common/model/make_model.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "common/model/random_config.h"
#include "common/model/weight_names.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBytes = 256;
constexpr int kTokenizerVocabularyMin = 300;
constexpr const char* kSpecialTokens[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": can't be written"));
  return absl::OkStatus();
}

// Nearly normal, mean 0 and variance 1: the sum of four 16-bit uniforms of one draw.
float NextNormal(Random& random) {
  const uint64_t draw = random.Next();
  const double sum = static_cast<double>((draw & 0xffff) + ((draw >> 16) & 0xffff) +
                                         ((draw >> 32) & 0xffff) + (draw >> 48));
  constexpr double kMean = 2.0 * 65535;
  const double deviation = 65536 * std::sqrt(1.0 / 3.0);
  return static_cast<float>((sum - kMean) / deviation);
}

// Mean and standard deviation of a tensor's elements.
struct Spread {
  double mean;
  double deviation;
};

Spread SpreadOf(const WeightSpec& spec, const ModelConfig& config) {
  const auto ends = [&](std::string_view suffix) { return spec.name.ends_with(suffix); };
  if (spec.adds_one) return {0.0, 0.1};
  // Queries twice as large make attention pick few tokens, so that text depends on its context.
  if (ends("q_norm.weight")) return {2.0, 0.1};
  if (ends("norm.weight")) return {1.0, 0.1};
  if (ends(".bias")) return {0.0, 0.3};
  if (ends("e_score_correction_bias")) return {0.0, 0.05};
  const double fan_in = std::sqrt(static_cast<double>(spec.shape.back()));
  if (ends("q_proj.weight") || ends("q_b_proj.weight")) return {0.0, 2.0 / fan_in};
  if (ends("o_proj.weight") || ends("down_proj.weight") || ends(".w2.weight")) {
    return {0.0, 2.0 / fan_in};
  }
  // So far apart that scores are rarely near ties.
  if (ends(".gate.weight")) return {0.0, 2.0 / fan_in};
  if (ends("lm_head.weight")) return {0.0, 4.0 / fan_in};
  if (ends("embed_tokens.weight")) {
    // Tied: small enough beside the layers' output that a token doesn't predict itself for ever.
    if (config.scaled_embeddings) return {0.0, (config.tie_word_embeddings ? 0.5 : 1.0) / fan_in};
    return config.tie_word_embeddings ? Spread{0.0, 2.0 / fan_in} : Spread{0.0, 1.0};
  }
  return {0.0, 1.0 / fan_in};
}

void AppendElement(float value, DType dtype, std::string& out) {
  if (dtype == DType::kF32) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToF16(value);
  out.append(reinterpret_cast<const char*>(&half), sizeof(half));
}

// Elements depend on the seed and the tensor's name alone, not on sharding or its neighbours.
std::vector<float> RandomElements(const WeightSpec& spec, const ModelConfig& config,
                                  const RandomModelOptions& options) {
  uint64_t seed = options.seed;
  for (const char c : spec.name) seed = Mix64(seed ^ static_cast<uint8_t>(c));
  Random random(seed);
  const Spread spread = SpreadOf(spec, config);
  int64_t count = 1;
  for (const int64_t size : spec.shape) count *= size;
  std::vector<float> elements(static_cast<size_t>(count));
  for (float& element : elements) {
    element = static_cast<float>(spread.mean + spread.deviation * NextNormal(random));
  }
  return elements;
}

// What an E4M3 number without a sign is worth; the engine's tests hold their own table to the
// format.
float E4m3Value(int code) {
  const int exponent = code >> 3;
  const int mantissa = code & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// The code of the nearest E4M3 number.
uint8_t E4m3Code(float value) {
  constexpr int kLargest = 0x7e;
  const float size = std::fabs(value);
  int low = 0;
  int high = kLargest + 1;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (E4m3Value(middle) <= size ? low : high) = middle;
  }
  if (low < kLargest && E4m3Value(low + 1) - size < size - E4m3Value(low)) ++low;
  return static_cast<uint8_t>(low | (std::signbit(value) ? 0x80 : 0));
}

// A projection as FP8: its codes, its scales, and what both are worth.
struct Quantized {
  std::string codes;
  std::vector<float> scales;
  std::vector<float> values;
};

std::vector<int64_t> ScaleShape(const WeightSpec& spec, RandomModelOptions::Scales scales) {
  switch (scales) {
    case RandomModelOptions::Scales::kBlocks:
      return Fp8Blocks(spec.shape);
    case RandomModelOptions::Scales::kRows:
      return {spec.shape[0], 1};
    case RandomModelOptions::Scales::kTensor:
      return {};
  }
  return {};
}

Quantized Quantize(const std::vector<float>& elements, const WeightSpec& spec,
                   RandomModelOptions::Scales scales) {
  constexpr float kLargestValue = 448;
  const auto columns = static_cast<size_t>(spec.shape[1]);
  const auto scale_columns = static_cast<size_t>(Fp8Blocks(spec.shape)[1]);
  Quantized quantized;
  size_t count = 1;
  for (const int64_t size : ScaleShape(spec, scales)) count *= static_cast<size_t>(size);
  quantized.scales.resize(count);
  const auto scale_at = [&](size_t i) -> float& {
    const size_t row = i / columns;
    if (scales == RandomModelOptions::Scales::kTensor) return quantized.scales[0];
    if (scales == RandomModelOptions::Scales::kRows) return quantized.scales[row];
    return quantized.scales[row / kFp8Block * scale_columns + i % columns / kFp8Block];
  };
  for (size_t i = 0; i < elements.size(); ++i) {
    scale_at(i) = std::max(scale_at(i), std::fabs(elements[i]) / kLargestValue);
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    const uint8_t code = E4m3Code(elements[i] / scale_at(i));
    const float value = E4m3Value(code & 0x7f) * scale_at(i);
    quantized.codes.push_back(static_cast<char>(code));
    quantized.values.push_back((code & 0x80) != 0 ? -value : value);
  }
  return quantized;
}

std::string BytesOf(const std::vector<float>& elements, DType dtype) {
  std::string bytes;
  bytes.reserve(elements.size() * DTypeBytes(dtype));
  for (const float element : elements) AppendElement(element, dtype, bytes);
  return bytes;
}

// A tensor of the file.
struct FileTensor {
  WeightSpec spec;  // The weight that it belongs to.
  std::string name;
  std::vector<int64_t> shape;
  DType dtype;
};

std::string RandomTensor(const FileTensor& tensor, const ModelConfig& config,
                         const RandomModelOptions& options) {
  const std::vector<float> elements = RandomElements(tensor.spec, config, options);
  if (tensor.spec.scale.empty()) return BytesOf(elements, tensor.dtype);
  const Quantized quantized = Quantize(elements, tensor.spec, options.fp8_scales);
  if (options.fp8_widened) return BytesOf(quantized.values, tensor.dtype);
  if (tensor.dtype == DType::kF8E4M3) return quantized.codes;
  return BytesOf(quantized.scales, tensor.dtype);
}

// The tensors that the weights `specs` are stored as.
std::vector<FileTensor> FileTensors(const std::vector<WeightSpec>& specs,
                                    const RandomModelOptions& options) {
  std::vector<FileTensor> tensors;
  for (const WeightSpec& spec : specs) {
    const bool scaled = !spec.scale.empty();
    DType dtype = options.dtype;
    if (scaled) dtype = options.fp8_widened ? DType::kF32 : DType::kF8E4M3;
    tensors.push_back({spec, spec.name, spec.shape, dtype});
    if (!scaled || options.fp8_widened) continue;
    tensors.push_back({spec, spec.scale, ScaleShape(spec, options.fp8_scales), DType::kF32});
  }
  return tensors;
}

absl::Status WriteShard(const std::string& path, const std::vector<FileTensor>& tensors,
                        const ModelConfig& config, const RandomModelOptions& options) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const FileTensor& tensor : tensors) {
    uint64_t bytes = DTypeBytes(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // Aligns the data, as other writers do.
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const FileTensor& tensor : tensors) file << RandomTensor(tensor, config, options);
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": can't be written"));
  return absl::OkStatus();
}

absl::Status WriteWeights(const std::string& path, const ModelConfig& config,
                          const RandomModelOptions& options) {
  ModelConfig written = config;
  written.fp8 = options.fp8 || options.fp8_widened;
  if (options.fp8_scales != RandomModelOptions::Scales::kBlocks) {
    written.fp8_scale_suffix = "_scale";
  }
  const std::vector<FileTensor> specs =
      FileTensors(StageWeights(written, 0, config.num_hidden_layers), options);
  if (options.shards == 1) {
    return WriteShard(path + "/model.safetensors", specs, config, options);
  }
  const size_t shards = static_cast<size_t>(options.shards);
  Json weight_map = Json::object();
  for (size_t shard = 0; shard < shards; ++shard) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, options.shards);
    const std::vector<FileTensor> part(
        specs.begin() + static_cast<ptrdiff_t>(specs.size() * shard / shards),
        specs.begin() + static_cast<ptrdiff_t>(specs.size() * (shard + 1) / shards));
    for (const FileTensor& tensor : part) weight_map[tensor.name] = name;
    BATON_RETURN_IF_ERROR(WriteShard(absl::StrCat(path, "/", name), part, config, options));
  }
  const Json index = {{"metadata", Json::object()}, {"weight_map", weight_map}};
  return WriteFile(path + "/model.safetensors.index.json", index.dump(1));
}

// UTF-8 of the character that byte-level BPE writes for `byte`: itself where it is a visible
// Latin-1 character, else the next free one from U+0100 on.
std::string ByteCharacter(int byte) {
  const auto visible = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!visible(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += visible(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

absl::Status WriteTokenizer(const std::string& path) {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < kBytes; ++byte) vocabulary[ByteCharacter(byte)] = byte;
  Json added = Json::array();
  for (int i = 0; i < static_cast<int>(std::size(kSpecialTokens)); ++i) {
    added.push_back({{"id", kBytes + i},
                     {"content", kSpecialTokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"vocab", vocabulary},
                            {"merges", Json::array()}}}};
  BATON_RETURN_IF_ERROR(WriteFile(path + "/tokenizer.json", tokenizer.dump(1)));
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", nullptr},
                                 {"eos_token", kSpecialTokens[2]},
                                 {"clean_up_tokenization_spaces", false}};
  return WriteFile(path + "/tokenizer_config.json", tokenizer_config.dump(1));
}

absl::Status ValidateOptions(const RandomModelOptions& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16 &&
      options.dtype != DType::kF16) {
    return InvalidField("dtype",
                        absl::StrCat("must be F32, BF16 or F16, is ", DTypeName(options.dtype)));
  }
  constexpr int kMaxShards = 99999;
  if (options.shards < 1 || options.shards > kMaxShards) {
    return InvalidField("shards", absl::StrCat("must be between 1 and 99999, is ", options.shards));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeRandomModel(const std::string& path, const RandomModelOptions& options) {
  BATON_RETURN_IF_ERROR(ValidateOptions(options));
  const std::string config_text = RandomConfig(options).dump(1);
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_text, "options"));
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(path, ": can't be created: ", error.message()));
  }
  BATON_RETURN_IF_ERROR(WriteFile(path + "/config.json", config_text));
  Json generation = Json::object();
  if (options.vocab_size >= kTokenizerVocabularyMin) {
    generation["eos_token_id"] = {kBytes + 2, kBytes};
    BATON_RETURN_IF_ERROR(WriteTokenizer(path));
  }
  BATON_RETURN_IF_ERROR(WriteFile(path + "/generation_config.json", generation.dump(1)));
  return WriteWeights(path, config, options);
}

}  // namespace baton
