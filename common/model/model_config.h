// The part of a Hugging Face config.json that decides what a model computes. Parsing is strict:
// keys that give shapes are mandatory unless transformers documents a default for the family, keys
// that would change the mathematics in a way that Baton
// does not compute are refused by name, and every size is bounded before anybody allocates by it.
#ifndef COMMON_MODEL_MODEL_CONFIG_H_
#define COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/rope_scaling.h"
#include "common/types/kv_layout.h"

namespace baton {

// What a router makes of the products of a token and its rows of weights.
enum class ExpertScore {
  kSoftmax,
  kSigmoid,  // A bias for each expert may be added, for the choice alone.
};

// What a group of experts is worth, where only those of the best groups are chosen.
enum class GroupScore {
  kBest,      // Its best score.
  kSumOfTwo,  // The sum of its two best.
};

// What a gated layer applies to its gate.
enum class Activation {
  kSilu,
  kGeluTanh,  // GELU by its approximation with tanh.
};

// The experts of a sparse layer: gated layers of which each token goes through a few. A router, one
// row of weights for each expert, scores them; a token goes to the `active` highest scores and
// takes the sum of their outputs, weighted by the scores in float32.
struct Experts {
  // Names of tensors: "model.layers.N.BLOCK.gate", "model.layers.N.BLOCK.experts.N.GATE", ...
  struct Names {
    const char* block = "mlp";
    const char* gate = "gate_proj";
    const char* up = "up_proj";
    const char* down = "down_proj";
    const char* bias = "gate.e_score_correction_bias";
  };
  Names names;
  int count = 0;  // That the router chooses among; 0: every layer is dense.
  int held = 0;   // In this process; all of them but in a rank's part of a model.
  int active = 0;
  int inner = 0;           // Columns inside each expert.
  bool normalise = false;  // Whether a token's weights are divided by their sum.
  ExpertScore score = ExpertScore::kSoftmax;
  bool bias = false;
  // Runs of equally many experts, and how many of them a token's experts are chosen from.
  int groups = 1;
  int groups_kept = 1;
  GroupScore group_score = GroupScore::kBest;
  double scaling = 1;  // A factor of the weights, after all else.
  // Columns of a gated layer that all tokens go through as well; 0: none.
  int shared_inner = 0;
  // Layer i is sparse if `step` divides i + 1 and i is not among `dense_layers`.
  int step = 1;
  std::vector<int> dense_layers;
};

// Attention over one row for each token, which all heads share and which alone is cached: `kv_rank`
// values, of which every head computes its keys and values, and `rope_dim` that are turned by the
// position and are part of every head's key.
struct LatentAttention {
  int kv_rank = 0;          // 0: the model has keys and values instead.
  int q_rank = 0;           // Values that queries are computed from; 0: the residual stream itself.
  int nope_dim = 0;         // A head's query and key have so many elements that are not turned,
  int rope_dim = 0;         // and behind them so many that are.
  int value_dim = 0;        // Elements of a head's value.
  bool interleaved = true;  // Rope pairs elements 2i and 2i + 1, not i and i + rope_dim / 2.

  // The norms of both ranks: transformers makes them with its default.
  static constexpr double kNormEps = 1e-6;

  int row() const { return kv_rank + rope_dim; }
  int key_dim() const { return nope_dim + rope_dim; }
};

// Rows and columns of the blocks of FP8 matrices that have a scale each.
inline constexpr int kFp8Block = 128;

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  // What is cached: heads of `head_dim` elements in each of `kv_planes` planes, keys and values.
  // With latent attention one head, whose one plane has its rows.
  int num_key_value_heads = 0;
  int head_dim = 0;
  int kv_planes = 2;
  int vocab_size = 0;
  int max_position_embeddings = 0;  // Tokens of prompt and output, as rope_scaling stretches it.
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  // The type of the stored weights in config.json; "" if absent. Not the type of the computation.
  std::string torch_dtype;

  // What sets the families apart; blocks test these, never the architecture's name.
  bool qkv_bias = false;  // Bias on the query, key and value projections.
  bool o_bias = false;    // On attention's output projection.
  bool mlp_bias = false;  // On the three projections of a dense feed-forward layer.
  bool qk_norm = false;   // RMSNorm over head_dim of queries and keys, before rope.
  int rotated = 0;        // Position turns so many first elements of a head; 0: all.
  // One RMSNorm over all queries of a token and one over all its keys, instead of each head's.
  bool qk_norm_whole = false;
  // Queries, keys and values are stored as one matrix, and gate and up of a dense layer as another.
  bool fused = false;
  LatentAttention latent;
  Experts experts;
  // Projections of the layers may be FP8 (e4m3) with scales. A router and what is no matrix never
  // are.
  bool fp8 = false;
  // The scales' tensor is the matrix's name and this. "_scale_inv": a scale for each block of 128
  // by 128. "_scale": one for the matrix, for each of its rows or for each such block.
  std::string fp8_scale_suffix = "_scale_inv";
  // A token attends to itself and the sliding_window - 1 tokens before it; 0: to all before it.
  int sliding_window = 0;
  // Whether each layer has that window, and the rope of the next line, while the others have
  // neither; empty: all layers are alike.
  std::vector<bool> sliding_layers;
  double sliding_rope_theta = 0;  // Their rope is not scaled; 0: it is the others'.
  Activation activation = Activation::kSilu;
  bool norm_adds_one = false;  // Norms multiply by 1 and the weight, not by the weight.
  // What attention and the feed-forward layer give is normalised before it is added, too.
  bool output_norms = false;
  bool scaled_embeddings = false;  // By the root of hidden_size.
  double query_scalar = 0;         // Scores are divided by its root; 0: by that of head_dim.
  // Scores of attention, and logits, become cap * tanh(x / cap); 0: they stay.
  double score_softcap = 0;
  double logit_softcap = 0;
  // In front of the names of all tensors: a model of language may be a part of another.
  std::string weights_prefix;

  // Ids that end a generation; from generation_config.json if it is there, else from config.json.
  std::vector<int32_t> eos_token_ids;

  // Layers behind the others that predict further tokens; not run.
  int mtp_layers = 0;

  // The pages of all layers: the one place that says what is cached.
  KvLayout kv(int page_size, ElementType type) const {
    return {num_hidden_layers,
            num_key_value_heads,
            head_dim,
            page_size,
            static_cast<int>(ElementBytes(type)),
            kv_planes};
  }
  // Whether the layer is one of sliding_layers.
  bool slides(int layer) const {
    return !sliding_layers.empty() && sliding_layers[static_cast<size_t>(layer)];
  }
  int window(int layer) const {
    return sliding_layers.empty() || slides(layer) ? sliding_window : 0;
  }
  // Elements of a head that position turns.
  int rope_dim() const {
    return latent.kv_rank > 0 ? latent.rope_dim : rotated > 0 ? rotated : head_dim;
  }
  // Columns of what attention gives to the output projection.
  int attended_size() const {
    return num_attention_heads * (latent.kv_rank > 0 ? latent.value_dim : head_dim);
  }
  // The factor of attention's scores.
  float attention_scale() const;
  int query_size() const { return num_attention_heads * head_dim; }
  int kv_size() const { return num_key_value_heads * head_dim; }
  // Elements of the norms of queries and keys; 0: there are none.
  int q_norm_size() const { return !qk_norm ? 0 : qk_norm_whole ? query_size() : head_dim; }
  int k_norm_size() const { return !qk_norm ? 0 : qk_norm_whole ? kv_size() : head_dim; }
  bool sparse(int layer) const;  // Whether its feed-forward layer consists of experts.
  // How many of layers [begin, end) are sparse.
  int SparseLayers(int begin, int end) const;
  // If `context_tokens` are more than the model has positions, and longrope has divisors for longer
  // texts: takes those, for texts of any length, and as many positions as they are made for.
  // Rejected: to choose by each text's length, as Hugging Face does. A text that becomes longer
  // would need other keys than those that are in its pages.
  void Stretch(int64_t context_tokens);
  // What max_position_embeddings is, or can be stretched to.
  int LongestContext() const;
  // How much each layer computes for a token beside attention to other tokens: its parameters that
  // a token uses.
  std::vector<double> LayerWork() const;
  // Parameters of layers [begin, end), and of the whole model with embeddings and head; of the
  // latter those that a token uses.
  int64_t LayerParameters(int begin, int end) const;
  int64_t Parameters() const;
  int64_t ActiveParameters() const;
};

// Parses `json`; `file` names it in messages. InvalidArgument names the key and the file;
// Unimplemented is for what is well-formed but not supported (architectures, scalings, ...).
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& file);

// Reads config.json, and generation_config.json where present, of `model_path`, and stretches it
// for `context_tokens`; 0: as it is. NotFound when config.json is missing.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_path,
                                            int64_t context_tokens = 0);

// The "eos_token_id" of config.json alone, without generation_config.json. Errors as above.
absl::StatusOr<std::vector<int32_t>> ConfigEosTokenIds(const std::string& model_path);

// OK when [layer_begin, layer_end) is a non-empty range of the model's layers.
absl::Status ValidateLayerRange(const ModelConfig& config, int layer_begin, int layer_end);

// The architectures that Baton runs, for messages and `baton model info`.
std::vector<std::string> KnownArchitectures();

}  // namespace baton

#endif  // COMMON_MODEL_MODEL_CONFIG_H_
