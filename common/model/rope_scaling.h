// How a model stretches its rotary position embeddings beyond the context that it was trained on:
// config.json's rope_scaling (transformers up to 4) or rope_parameters (5 and later).
#ifndef COMMON_MODEL_ROPE_SCALING_H_
#define COMMON_MODEL_ROPE_SCALING_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

class ConfigReader;  // Its header has nlohmann's, and much of the tree includes this one.

inline constexpr int kMaxPositions = 1 << 26;

// Where the rope may be described.
inline constexpr const char* kRopeKeys[] = {"rope_scaling", "rope_parameters"};

// Frequencies are in radians per position. A page holds keys that are already turned, so a
// frequency can't depend on how long a text becomes. "dynamic" is served up to the length from
// which on its would; "longrope" too, or with those of long texts for all (ModelConfig::Stretch).
enum class RopeKind {
  kLinear,  // Every frequency is divided by `factor`.
  kLlama3,  // Long wavelengths are divided by `factor`, short ones stay, the rest is interpolated.
  kYarn,    // The same over dimensions; cosines and sines are multiplied by `magnitude`.
  kLongRope,  // Each frequency has a divisor of its own; and `magnitude`.
};

struct RopeScaling {
  RopeKind kind = RopeKind::kLinear;
  double factor = 1;
  double magnitude = 1;        // For yarn and longrope.
  double score_magnitude = 1;  // For yarn; DeepSeek's scores have its square as factor.
  int original_max_position_embeddings = 0;  // Positions of the training; llama3 and yarn.
  double low_freq_factor = 1;                // For llama3.
  double high_freq_factor = 4;
  // For yarn: turns over the original context from which on a frequency stays, and up to which it
  // is divided by `factor`; with `truncate` the dimensions between begin and end at whole numbers.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::vector<double> divisors;       // For longrope; rope_dim / 2.
  std::vector<double> long_divisors;  // Its divisors in texts that are longer than the original.
  int long_positions = 0;             // What those may have.
};

const char* RopeKindName(RopeKind kind);

struct Rope {
  double theta = 10000;
  std::optional<RopeScaling> scaling;
  int max_positions = 0;  // That a text may have.
};

// What a configuration class has of its own.
struct RopeOfClass {
  double theta = 10000;  // By default.
  // Ropes differ by the layers' type, and this type's is read; "": all layers have one.
  const char* layer_type = "";
  bool stretches_positions = true;  // Whether linear makes more positions than config.json says.
};

// `max_position_embeddings`: of the same file. `rope_dim`: elements of a head that are turned.
// Kinds that aren't known are Unimplemented; what is malformed is InvalidArgument; both name the
// key.
absl::StatusOr<Rope> ParseRope(const ConfigReader& reader, int max_position_embeddings,
                               int rope_dim, const RopeOfClass& by_class = {});

}  // namespace baton

#endif  // COMMON_MODEL_ROPE_SCALING_H_
