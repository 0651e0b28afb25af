#include "services/router/core/fit.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/types/kv_layout.h"

namespace baton::router {
namespace {

constexpr int kMaxLayers = 4096;

std::string Text(const LayerRange& range) {
  return absl::StrCat("[", range.begin, ", ", range.end, ")");
}

std::string Text(uint64_t hash) { return absl::StrCat(absl::Hex(hash, absl::kZeroPad16)); }

absl::Status Mismatch(const std::string& property, const WorkerInfo& joining,
                      const std::string& joining_value, const WorkerInfo& member,
                      const std::string& member_value) {
  return absl::FailedPreconditionError(absl::StrCat(property, " differs: ", joining.instance.id,
                                                    " has ", joining_value, ", ",
                                                    member.instance.id, " has ", member_value));
}

std::string Versions(const ModelFingerprint& speaks) {
  return absl::StrCat(speaks.oldest_protocol_version, " to ", speaks.protocol_version);
}

// By its size, which is what layouts carry.
std::string KvTypeText(const KvLayout& layout) {
  for (const ElementType type : kElementTypes) {
    if (layout.bytes_per_element == static_cast<int>(ElementBytes(type))) {
      return absl::StrCat(ElementTypeName(type), " (", layout.bytes_per_element, ")");
    }
  }
  return absl::StrCat(layout.bytes_per_element);
}

bool Meet(const ModelFingerprint& a, const ModelFingerprint& b) {
  return a.oldest_protocol_version <= b.protocol_version &&
         b.oldest_protocol_version <= a.protocol_version;
}

absl::Status CheckLayout(const KvLayout& layout) {
  if (layout.layers < 1 || layout.layers > kMaxLayers) {
    return InvalidField("fingerprint.kv_layout.layers",
                        absl::StrCat("must be from 1 to ", kMaxLayers, ", is ", layout.layers));
  }
  if (layout.kv_heads < 1 || layout.head_dim < 1 || layout.page_size < 1 ||
      layout.bytes_per_element < 1 || layout.planes < 1) {
    return InvalidField(
        "fingerprint.kv_layout",
        "kv_heads, head_dim, page_size, bytes_per_element and planes must be positive");
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const WorkerInfo& worker) {
  const int layers = worker.fingerprint.kv_layout.layers;
  const LayerRange& range = worker.layers;
  if (range.begin < 0 || range.begin >= range.end || range.end > layers) {
    return InvalidField(
        "layers", absl::StrCat(Text(range), " is not a range of the model's ", layers, " layers"));
  }
  const bool first = worker.pp_rank == 0;
  const bool last = worker.pp_rank == worker.pp_size - 1;
  const bool whole = worker.role == Role::kDecode && worker.pp_size == 1;
  if ((first && range.begin != 0) || (last && range.end != layers)) {
    return InvalidField(
        "layers", absl::StrCat(Text(range), " of ", layers, " layers: ",
                               whole ? "a decode service of one stage holds them all"
                               : first && range.begin != 0 ? "stage 0 begins with layer 0"
                                                           : "the last stage ends the model"));
  }
  return absl::OkStatus();
}

// Within its chain or decode service.
std::string Place(const WorkerInfo& worker) {
  std::string rank = absl::StrCat("tensor-parallel rank ", worker.tensor_rank.rank);
  if (worker.role == Role::kDecode && worker.pp_size == 1) return rank;
  const std::string stage = absl::StrCat("rank ", worker.pp_rank);
  return worker.tensor_rank.alone() ? stage : absl::StrCat(stage, ", ", rank);
}

std::string ChunksText(const RankAgreement& agreed) {
  if (agreed.row_parallel_chunks == 0) return "auto";
  return absl::StrCat(agreed.row_parallel_chunks);
}

// How a chain or a decode service is cut, which its members must agree on.
absl::Status CheckShape(const std::string& of_grid, const WorkerInfo& joining,
                        const WorkerInfo& member) {
  const bool chain = joining.role == Role::kPrefill;
  const auto differ = [&](const char* property, const std::string& left, const std::string& right) {
    return Mismatch(property + of_grid, joining, left, member, right);
  };
  if (joining.pp_size != member.pp_size) {
    return differ("pp_size", absl::StrCat(joining.pp_size), absl::StrCat(member.pp_size));
  }
  if (joining.tensor_rank.size != member.tensor_rank.size) {
    return differ("tp_size", absl::StrCat(joining.tensor_rank.size),
                  absl::StrCat(member.tensor_rank.size));
  }
  const RankAgreement& a = joining.agreed;
  const RankAgreement& b = member.agreed;
  if (a.row_parallel_chunks != b.row_parallel_chunks) {
    return differ("row_parallel_chunks", ChunksText(a), ChunksText(b));
  }
  if (a.row_parallel_threshold != b.row_parallel_threshold) {
    return differ("row_parallel_chunk_threshold", absl::StrCat(a.row_parallel_threshold),
                  absl::StrCat(b.row_parallel_threshold));
  }
  if (joining.decodes != member.decodes) {
    const auto mode = [](const WorkerInfo& w) { return w.decodes ? "null" : "prefill"; };
    return differ("disaggregation_mode", mode(joining), mode(member));
  }
  if (chain && a.sends_slices != b.sends_slices) {
    return differ("pp_send_slice", a.sends_slices ? "true" : "false",
                  b.sends_slices ? "true" : "false");
  }
  return absl::OkStatus();
}

absl::Status CheckLayersOf(const std::string& of_grid, const WorkerInfo& joining,
                           const WorkerInfo& member) {
  if (joining.pp_rank == member.pp_rank) {
    if (joining.layers == member.layers) return absl::OkStatus();
    return Mismatch(absl::StrCat("layers of rank ", joining.pp_rank, of_grid), joining,
                    Text(joining.layers), member, Text(member.layers));
  }
  const bool before = joining.pp_rank < member.pp_rank;
  const WorkerInfo& left = before ? joining : member;
  const WorkerInfo& right = before ? member : joining;
  const bool neighbours = right.pp_rank - left.pp_rank == 1;
  if (left.layers.end > right.layers.begin ||
      (neighbours && left.layers.end != right.layers.begin)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "layers", of_grid, left.layers.end > right.layers.begin ? " overlap: " : " leave a gap: ",
        joining.instance.id, " (", Place(joining), ") has ", Text(joining.layers), ", ",
        member.instance.id, " (", Place(member), ") has ", Text(member.layers)));
  }
  return absl::OkStatus();
}

// Ranks share the heads, or a head is shared by ranks.
absl::Status CheckTensorRank(const WorkerInfo& worker) {
  const TensorRank rank = worker.tensor_rank;
  if (rank.size > kMaxTensorRanks || rank.rank < 0 || rank.rank >= rank.size) {
    return InvalidField("tensor_rank", absl::StrCat("rank ", rank.rank, " of ", rank.size,
                                                    "; there can be 1 to ", kMaxTensorRanks));
  }
  const int kv_heads = worker.fingerprint.kv_layout.kv_heads;
  if (kv_heads % rank.size != 0 && rank.size % kv_heads != 0) {
    return InvalidField("tensor_rank", absl::StrCat(rank.size, " ranks can't share ", kv_heads,
                                                    " KV heads: neither divides the other"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWellFormed(const WorkerInfo& worker) {
  if (worker.instance.id.empty()) return InvalidField("instance.instance_id", "is empty");
  if (worker.instance.incarnation == 0)
    return InvalidField("instance.incarnation", "must not be 0");
  BATON_RETURN_IF_ERROR(CheckLayout(worker.fingerprint.kv_layout));
  if (worker.fingerprint.oldest_protocol_version > worker.fingerprint.protocol_version) {
    return InvalidField(
        "fingerprint.oldest_protocol_version",
        absl::StrCat("must not be above protocol_version, is ", Versions(worker.fingerprint)));
  }
  if (worker.role == Role::kPrefill && worker.chain_id.empty()) {
    return InvalidField("chain_id", "is empty");
  }
  if (worker.pp_size < 1 || worker.pp_size > kMaxStages) {
    return InvalidField("pp_size",
                        absl::StrCat("must be from 1 to ", kMaxStages, ", is ", worker.pp_size));
  }
  if (worker.pp_rank < 0 || worker.pp_rank >= worker.pp_size) {
    return InvalidField("pp_rank", absl::StrCat("must be from 0 to pp_size - 1 = ",
                                                worker.pp_size - 1, ", is ", worker.pp_rank));
  }
  if (worker.role == Role::kDecode && worker.decodes) {
    return InvalidField("decodes", "is for workers of prefill chains");
  }
  if (worker.role == Role::kDecode && worker.places() > 1 && worker.decode_id.empty()) {
    return InvalidField("decode_id", "is empty");
  }
  BATON_RETURN_IF_ERROR(CheckLayers(worker));
  BATON_RETURN_IF_ERROR(CheckTensorRank(worker));
  if (worker.page_count < 1) return InvalidField("page_count", "must be positive");
  if (worker.max_running_requests < 1) {
    return InvalidField("max_running_requests", "must be positive");
  }
  if (worker.max_context_tokens < 1) return InvalidField("max_context_tokens", "must be positive");
  return absl::OkStatus();
}

absl::Status CheckProtocol(const WorkerInfo& worker) {
  const ModelFingerprint own = {.protocol_version = kProtocolVersion,
                                .oldest_protocol_version = kOldestProtocolVersion};
  if (Meet(worker.fingerprint, own)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("protocol version: ", worker.instance.id, " speaks ",
                                            Versions(worker.fingerprint), ", this router ",
                                            Versions(own)));
}

absl::Status CheckModels(const WorkerInfo& joining, const WorkerInfo& member) {
  const ModelFingerprint& a = joining.fingerprint;
  const ModelFingerprint& b = member.fingerprint;
  const auto differ = [&](const std::string& property, const std::string& left,
                          const std::string& right) {
    return Mismatch(property, joining, left, member, right);
  };
  const auto differ_number = [&](const std::string& property, int64_t left, int64_t right) {
    return differ(property, absl::StrCat(left), absl::StrCat(right));
  };
  if (!Meet(a, b)) return differ("protocol version", Versions(a), Versions(b));
  if (a.config_hash != b.config_hash) {
    return differ("model config (hash)", Text(a.config_hash), Text(b.config_hash));
  }
  if (a.dtype != b.dtype) return differ("dtype", a.dtype, b.dtype);
  if (a.numerics != b.numerics) {
    const auto name = [](const ModelFingerprint& of) {
      return of.numerics.empty() ? "exact" : of.numerics;
    };
    return differ("arithmetic (--cpu-numerics exact is the same everywhere)", name(a), name(b));
  }
  const KvLayout& x = a.kv_layout;
  const KvLayout& y = b.kv_layout;
  if (x.page_size != y.page_size) return differ_number("page size", x.page_size, y.page_size);
  if (x.layers != y.layers) return differ_number("layer count", x.layers, y.layers);
  if (x.kv_heads != y.kv_heads) return differ_number("KV heads", x.kv_heads, y.kv_heads);
  if (x.head_dim != y.head_dim) return differ_number("head dimension", x.head_dim, y.head_dim);
  if (x.planes != y.planes) return differ_number("KV planes", x.planes, y.planes);
  if (x.bytes_per_element != y.bytes_per_element) {
    return differ("type of KV (bytes per element)", KvTypeText(x), KvTypeText(y));
  }
  for (const auto& [layer, hash] : a.layer_hashes) {
    const auto other = b.layer_hashes.find(layer);
    if (other != b.layer_hashes.end() && other->second != hash) {
      return differ(absl::StrCat("weights of layer ", layer, " (hash)"), Text(hash),
                    Text(other->second));
    }
  }
  if (a.embedding_hash != 0 && b.embedding_hash != 0 && a.embedding_hash != b.embedding_hash) {
    return differ("embedding (hash)", Text(a.embedding_hash), Text(b.embedding_hash));
  }
  if (a.head_hash != 0 && b.head_hash != 0 && a.head_hash != b.head_hash) {
    return differ("output head (hash)", Text(a.head_hash), Text(b.head_hash));
  }
  return absl::OkStatus();
}

absl::Status CheckFit(const WorkerInfo& joining, const WorkerInfo& member) {
  BATON_RETURN_IF_ERROR(CheckModels(joining, member));
  return CheckPlace(joining, member);
}

absl::Status CheckPlace(const WorkerInfo& joining, const WorkerInfo& member) {
  const GridName grid = joining.grid();
  if (grid != member.grid()) return absl::OkStatus();
  const bool chain = grid.role == Role::kPrefill;
  const std::string of_grid = absl::StrCat(chain ? " of chain " : " of decode service ", grid.id);
  BATON_RETURN_IF_ERROR(CheckShape(of_grid, joining, member));
  if (joining.place() == member.place()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Place(joining), of_grid, " is taken: ", joining.instance.id, " wants it, ",
                     member.instance.id, " has it and is alive"));
  }
  return CheckLayersOf(of_grid, joining, member);
}

}  // namespace baton::router
