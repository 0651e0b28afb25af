#include "common/engine/torch/distributed/nccl_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/engine/torch/torch_device.h"

namespace baton {
namespace {

constexpr char kAddressKey[] = "nccl";
constexpr std::chrono::microseconds kBetweenLooks{100};
// The time that other ranks have to receive what this rank has sent, when it leaves in good order.
constexpr int64_t kLeaveUs = 300'000;

ncclDataType_t DataTypeOf(ElementType type) {
  return type == ElementType::kFloat32 ? ncclFloat32 : ncclBfloat16;
}

size_t ElementsOf(const TensorView& view) {
  return static_cast<size_t>(view.rows) * static_cast<size_t>(view.columns);
}

// Shares NCCL's address of rank 0, where rank 0 listens, with the other ranks.
absl::StatusOr<ncclUniqueId> ShareAddress(int rank, BootstrapStore& store, int64_t timeout_ms) {
  ncclUniqueId address;
  if (rank == 0) {
    const ncclResult_t made = ncclGetUniqueId(&address);
    if (made != ncclSuccess) {
      return absl::UnavailableError(
          absl::StrCat("NCCL: ", ncclGetErrorString(made), ": ", ncclGetLastError(nullptr)));
    }
    BATON_RETURN_IF_ERROR(store.Set(kAddressKey, {address.internal, sizeof(address.internal)}));
    return address;
  }
  BATON_ASSIGN_OR_RETURN(const std::string told, store.Get(kAddressKey, timeout_ms));
  if (told.size() != sizeof(address.internal)) {
    return absl::InvalidArgumentError(absl::StrCat("rank 0's NCCL address has ", told.size(),
                                                   " bytes, expected ", sizeof(address.internal)));
  }
  std::memcpy(address.internal, told.data(), told.size());
  return address;
}

}  // namespace

NcclStream::NcclStream(const GroupDescription& group, c10::Device device,
                       int64_t operation_timeout_ms)
    : group_(group),
      device_(device),
      operation_timeout_ms_(operation_timeout_ms),
      // A high priority, since computation waits for sums.
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {}

absl::StatusOr<std::unique_ptr<NcclStream>> NcclStream::Connect(const GroupDescription& group,
                                                                c10::Device device,
                                                                const NcclOptions& options,
                                                                BootstrapStore& store) {
  const int64_t deadline_us = NowUs() + options.connect_timeout_ms * 1000;
  const c10::DeviceGuard guard(device);
  BATON_ASSIGN_OR_RETURN(const ncclUniqueId address,
                         ShareAddress(group.rank, store, options.connect_timeout_ms));
  std::unique_ptr<NcclStream> stream(
      new NcclStream(group, device, options.communicator.operation_timeout_ms));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // A call that blocks in NCCL can't be ended.
  const ncclResult_t called =
      ncclCommInitRankConfig(&stream->communicator_, group.size(), address, group.rank, &config);
  BATON_RETURN_IF_ERROR(Annotate(stream->Settle(called, deadline_us, &store),
                                 absl::StrCat("connecting ", group.Describe(group.rank))));
  return stream;
}

NcclStream::~NcclStream() {
  if (communicator_ == nullptr) return;
  GuardTorch([this] {
    const c10::DeviceGuard guard(device_);
    const ncclResult_t leaves = ncclCommFinalize(communicator_);
    if (Settle(leaves, NowUs() + kLeaveUs, /*store=*/nullptr).ok()) {
      ncclCommDestroy(communicator_);
    } else {
      Abort();
    }
    return absl::OkStatus();
  }).IgnoreError();  // If the device fails, there is nothing left to finish.
}

absl::Status NcclStream::Says(ncclResult_t result) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* const last = ncclGetLastError(communicator_);
  return absl::UnavailableError(
      absl::StrCat("NCCL: ", ncclGetErrorString(result), ": ", last == nullptr ? "" : last));
}

absl::Status NcclStream::Settle(ncclResult_t called, int64_t deadline_us, BootstrapStore* store) {
  while (called == ncclInProgress) {
    if (store != nullptr) BATON_RETURN_IF_ERROR(store->ended());
    if (NowUs() >= deadline_us) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL waits for other ranks of ", group_.name, " for too long"));
    }
    std::this_thread::sleep_for(kBetweenLooks);
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &called);
    if (asked != ncclSuccess) return Says(asked);
  }
  return Says(called);
}

absl::Status NcclStream::Launched(ncclResult_t called) {
  return Settle(called, NowUs() + operation_timeout_ms_ * 1000, /*store=*/nullptr);
}

absl::StatusOr<CollectiveStream::Point> NcclStream::Mark() {
  auto point = std::make_shared<c10::Event>(c10::DeviceType::CUDA);
  point->record(c10::cuda::getCurrentCUDAStream(device_.index()).unwrap());
  return point;
}

absl::Status NcclStream::Begin(const Collective& collective, const Point& point) {
  const c10::InferenceMode inference;
  const c10::StreamGuard guard(stream_.unwrap());
  static_cast<const c10::Event*>(point.get())->block(stream_.unwrap());
  BATON_RETURN_IF_ERROR(BeginOnStream(collective));
  ends_.emplace_back(c10::DeviceType::CUDA);
  ends_.back().record(stream_.unwrap());
  return absl::OkStatus();
}

absl::Status NcclStream::BeginOnStream(const Collective& collective) {
  const TensorView& in = collective.input;
  const TensorView& out = collective.output;
  const bool receives = collective.kind == CollectiveKind::kReceive;
  const ncclDataType_t type = DataTypeOf(receives ? out.type : in.type);
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return SumAll(collective);
    case CollectiveKind::kAllGather:
      return Launched(ncclAllGather(in.memory.data, out.memory.data, ElementsOf(in), type,
                                    communicator_, stream_));
    case CollectiveKind::kBroadcast:
      return Launched(ncclBroadcast(in.memory.data, out.memory.data, ElementsOf(in), type,
                                    collective.peer, communicator_, stream_));
    case CollectiveKind::kSend:
      return Launched(
          ncclSend(in.memory.data, ElementsOf(in), type, collective.peer, communicator_, stream_));
    case CollectiveKind::kReceive:
      return Launched(ncclRecv(out.memory.data, ElementsOf(out), type, collective.peer,
                               communicator_, stream_));
  }
  return absl::InternalError("a collective of no kind");
}

namespace {

at::TensorOptions OptionsOf(const TensorView& view, c10::Device device) {
  const bool wide = view.type == ElementType::kFloat32;
  return at::TensorOptions(wide ? at::kFloat : at::kBFloat16).device(device);
}

// `out` becomes ((parts[0] + parts[1]) + parts[2]) + ..., in float32.
void SumInRankOrder(const at::Tensor& parts, const TensorView& out) {
  at::Tensor sum = parts.select(0, 0).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (int64_t rank = 1; rank < parts.size(0); ++rank) {
    sum.add_(parts.select(0, rank).to(at::kFloat));
  }
  at::from_blob(out.memory.data, {parts.size(1)}, parts.options()).copy_(sum);
}

}  // namespace

// Sends every rank's whole tensor to every rank: the sums of a decode step are small, so latency
// decides. NCCL's own sums are in any order, and of bfloat16 in bfloat16.
absl::Status NcclStream::SumAll(const Collective& collective) {
  const auto count = static_cast<int64_t>(ElementsOf(collective.input));
  const at::Tensor all = at::empty({group_.size(), count}, OptionsOf(collective.input, device_));
  BATON_RETURN_IF_ERROR(Launched(
      ncclAllGather(collective.input.memory.data, all.data_ptr(), static_cast<size_t>(count),
                    DataTypeOf(collective.input.type), communicator_, stream_)));
  SumInRankOrder(all, collective.output);
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclStream::OldestDone() {
  ncclResult_t state = ncclSuccess;
  BATON_RETURN_IF_ERROR(Says(ncclCommGetAsyncError(communicator_, &state)));
  if (state != ncclInProgress) BATON_RETURN_IF_ERROR(Says(state));
  if (!ends_.front().query()) return false;
  ends_.pop_front();
  return true;
}

void NcclStream::Abort() {
  const c10::DeviceGuard guard(device_);
  if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
  stream_.synchronize();  // The abort ends the kernels; until then they access tensors.
  ends_.clear();
}

}  // namespace baton
