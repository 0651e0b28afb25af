#include "services/router/worker_convert.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace baton::router {
namespace {

constexpr size_t kMaxAddressBytes = 256;
constexpr size_t kMaxDataAddressBytes = 64 << 10;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxDtypeBytes = 32;
constexpr int kMaxRowParallelChunks = 64;             // As --row-parallel-chunks.
constexpr int kMaxRowParallelThreshold = 16'777'216;  // As --row-parallel-chunk-threshold.

bool IsName(const std::string& text, size_t max_bytes) {
  return !text.empty() && text.size() <= max_bytes &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

absl::Status CheckName(const char* field, const std::string& text) {
  if (IsName(text, kMaxNameBytes)) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("must be 1 to ", kMaxNameBytes, " characters of [A-Za-z0-9._-]"));
}

// host:port with a host of letters, digits, dots, dashes and, for IPv6, brackets and colons. Other
// resolvers' schemes ("unix:", "dns:") are not among it: a worker names its own socket, no more.
absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool has_port = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
                        port <= 65535;
  const std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string inner = bracketed ? host.substr(1, host.size() - 2) : host;
  const bool host_ok = std::all_of(inner.begin(), inner.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || (bracketed && c == ':');
  });
  if (address.size() > kMaxAddressBytes || !has_port || !host_ok) {
    return InvalidField("worker.grpc_address", "must be HOST:PORT");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelFingerprint> FingerprintFromProto(const v1::ModelFingerprint& proto,
                                                      const LayerRange& layers) {
  ModelFingerprint fingerprint;
  BATON_ASSIGN_OR_RETURN(fingerprint.kv_layout,
                         rpc::FromProto(proto.kv_layout(), "worker.fingerprint.kv_layout"));
  // A layer without a hash could belong to another model unnoticed.
  if (proto.layer_hashes_size() != layers.size()) {
    return InvalidField("worker.fingerprint.layer_hashes",
                        absl::StrCat("must have one hash for each of the worker's ", layers.size(),
                                     " layers, has ", proto.layer_hashes_size()));
  }
  for (const auto& [layer, hash] : proto.layer_hashes()) {
    if (layer < layers.begin || layer >= layers.end) {
      return InvalidField("worker.fingerprint.layer_hashes",
                          absl::StrCat("layer ", layer, " is not one of the worker's"));
    }
    fingerprint.layer_hashes[layer] = hash;
  }
  if (!IsName(proto.dtype(), kMaxDtypeBytes)) {
    return InvalidField("worker.fingerprint.dtype", "must be the name of a type");
  }
  if (!proto.numerics().empty() && !IsName(proto.numerics(), kMaxDtypeBytes)) {
    return InvalidField("worker.fingerprint.numerics", "must be the name of an arithmetic");
  }
  fingerprint.config_hash = proto.config_hash();
  fingerprint.embedding_hash = proto.embedding_hash();
  fingerprint.head_hash = proto.head_hash();
  fingerprint.dtype = proto.dtype();
  fingerprint.numerics = proto.numerics();
  fingerprint.protocol_version = proto.protocol_version();
  fingerprint.oldest_protocol_version = proto.oldest_protocol_version();
  return fingerprint;
}

// Chains agree on these numbers, whatever they are; an absurd one would be told to every member.
absl::StatusOr<RankAgreement> AgreementFromProto(const v1::WorkerInfo& proto) {
  const auto check = [](const char* field, int value, int most) {
    if (value >= 0 && value <= most) return absl::OkStatus();
    return InvalidField(field, absl::StrCat("must be from 0 to ", most, ", is ", value));
  };
  BATON_RETURN_IF_ERROR(
      check("worker.row_parallel_chunks", proto.row_parallel_chunks(), kMaxRowParallelChunks));
  BATON_RETURN_IF_ERROR(check("worker.row_parallel_threshold", proto.row_parallel_threshold(),
                              kMaxRowParallelThreshold));
  return RankAgreement{proto.row_parallel_chunks(), proto.row_parallel_threshold(),
                       proto.sends_slices()};
}

}  // namespace

absl::StatusOr<WorkerInfo> WorkerFromProto(const v1::WorkerInfo& proto) {
  WorkerInfo worker;
  BATON_ASSIGN_OR_RETURN(worker.instance, rpc::FromProto(proto.instance(), "worker.instance"));
  switch (proto.role()) {
    case v1::ROLE_PREFILL:
      worker.role = Role::kPrefill;
      break;
    case v1::ROLE_DECODE:
      worker.role = Role::kDecode;
      break;
    default:
      return InvalidField("worker.role", "must be ROLE_PREFILL or ROLE_DECODE");
  }
  BATON_RETURN_IF_ERROR(CheckAddress(proto.grpc_address()));
  if (proto.data_address().size() > kMaxDataAddressBytes) {
    return InvalidField("worker.data_address",
                        absl::StrCat("must have at most ", kMaxDataAddressBytes, " bytes"));
  }
  BATON_ASSIGN_OR_RETURN(worker.layers, rpc::FromProto(proto.layers(), "worker.layers"));
  if (worker.role == Role::kPrefill) {
    BATON_RETURN_IF_ERROR(CheckName("worker.chain_id", proto.chain_id()));
  }
  BATON_ASSIGN_OR_RETURN(worker.fingerprint,
                         FingerprintFromProto(proto.fingerprint(), worker.layers));
  worker.grpc_address = proto.grpc_address();
  worker.data_address = proto.data_address();
  worker.chain_id = proto.chain_id();
  worker.pp_rank = proto.pp_rank();
  worker.pp_size = proto.pp_size();
  worker.decodes = proto.decodes();
  if (proto.has_tensor_rank()) {
    BATON_ASSIGN_OR_RETURN(worker.tensor_rank,
                           rpc::FromProto(proto.tensor_rank(), "worker.tensor_rank"));
    BATON_ASSIGN_OR_RETURN(worker.agreed, AgreementFromProto(proto));
  }
  const bool of_several = !worker.tensor_rank.alone() || worker.pp_size > 1;
  if (worker.role == Role::kDecode && of_several) {
    BATON_RETURN_IF_ERROR(CheckName("worker.decode_id", proto.decode_id()));
    worker.decode_id = proto.decode_id();
  }
  worker.page_count = proto.page_count();
  worker.max_running_requests = proto.max_running_requests();
  worker.max_context_tokens = proto.max_context_tokens();
  if (proto.reserved_decode_tokens() < 0) {
    return InvalidField("worker.reserved_decode_tokens", "must not be negative");
  }
  worker.reserved_decode_tokens = proto.reserved_decode_tokens();
  return worker;
}

absl::StatusOr<WorkerLoad> LoadFromProto(const v1::WorkerLoad& proto) {
  if (proto.running_requests() < 0 || proto.queued_requests() < 0 || proto.queued_tokens() < 0 ||
      proto.free_pages() < 0 || proto.quarantined_pages() < 0) {
    return InvalidField("load", "counts must not be negative");
  }
  WorkerLoad load;
  load.running_requests = proto.running_requests();
  load.queued_requests = proto.queued_requests();
  load.queued_tokens = proto.queued_tokens();
  load.free_pages = proto.free_pages();
  load.quarantined_pages = proto.quarantined_pages();
  return load;
}

v1::WorkerInfo ToProto(const WorkerInfo& worker) {
  v1::WorkerInfo proto;
  *proto.mutable_instance() = rpc::ToProto(worker.instance);
  proto.set_role(worker.role == Role::kPrefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE);
  proto.set_grpc_address(worker.grpc_address);
  proto.set_data_address(worker.data_address);
  *proto.mutable_layers() = rpc::ToProto(worker.layers);
  proto.set_chain_id(worker.chain_id);
  proto.set_pp_rank(worker.pp_rank);
  proto.set_pp_size(worker.pp_size);
  proto.set_decodes(worker.decodes);
  if (!worker.tensor_rank.alone()) {
    *proto.mutable_tensor_rank() = rpc::ToProto(worker.tensor_rank);
    proto.set_row_parallel_chunks(worker.agreed.row_parallel_chunks);
    proto.set_row_parallel_threshold(worker.agreed.row_parallel_threshold);
    proto.set_sends_slices(worker.agreed.sends_slices);
  }
  proto.set_decode_id(worker.decode_id);
  *proto.mutable_fingerprint() = rpc::ToProto(worker.fingerprint);
  proto.set_page_count(worker.page_count);
  proto.set_max_running_requests(worker.max_running_requests);
  proto.set_max_context_tokens(worker.max_context_tokens);
  proto.set_reserved_decode_tokens(worker.reserved_decode_tokens);
  return proto;
}

v1::ListedWorker ToProto(const Worker& worker, int64_t now_us) {
  v1::ListedWorker proto;
  *proto.mutable_worker() = ToProto(worker.info);
  proto.set_ready(worker.ready);
  proto.set_draining(worker.draining);
  v1::WorkerLoad& load = *proto.mutable_load();
  load.set_running_requests(worker.load.running_requests);
  load.set_queued_requests(worker.load.queued_requests);
  load.set_queued_tokens(worker.load.queued_tokens);
  load.set_free_pages(worker.load.free_pages);
  load.set_quarantined_pages(worker.load.quarantined_pages);
  proto.set_lease_remaining_ms(std::max<int64_t>(0, worker.lease_until_us - now_us) / 1000);
  return proto;
}

v1::ListResponse ToProto(const Membership& membership, int64_t now_us) {
  v1::ListResponse response;
  for (const Worker& worker : membership.Workers()) {
    *response.add_workers() = ToProto(worker, now_us);
  }
  for (const auto& [id, applicant] : membership.applicants()) {
    v1::RefusedWorker& refused = *response.add_refused();
    *refused.mutable_worker() = ToProto(applicant.info);
    refused.set_reason(std::string(applicant.refusal.message()));
    refused.set_refused_ms(std::max<int64_t>(0, now_us - applicant.since_us) / 1000);
  }
  return response;
}

}  // namespace baton::router
