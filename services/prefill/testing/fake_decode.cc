#include "services/prefill/testing/fake_decode.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/kv/head_routes.h"
#include "services/prefill/testing/fake_model.h"

namespace baton::prefill {
namespace {

constexpr int64_t kLimitUs = 20'000'000;
constexpr size_t kFloatsPerRun = size_t{kFakePageSize} * kFakeHeadDim;

}  // namespace

FakeDecode::FakeDecode(const InstanceRef& self, TensorRank rank)
    : self_(self), rank_(rank), own_(KvHeadsOf(kFakeKvHeads, rank)) {
  auto plane = DataPlane::Create({});
  BATON_CHECK(plane.ok()) << plane.status();
  data_plane_ = *std::move(plane);
  for (const MessageKind kind : {MessageKind::kKvPages, MessageKind::kKvControl}) {
    const absl::Status status = data_plane_->Register(kind, this);
    BATON_CHECK(status.ok()) << status;
  }
}

FakeDecode::~FakeDecode() { data_plane_->Shutdown(); }

size_t FakeDecode::FloatsPerLayer() const {
  return static_cast<size_t>(runs_per_layer()) * kFloatsPerRun;
}

void FakeDecode::Connect(const InstanceRef& stage, const std::string& address, TensorRank writer) {
  {
    MutexLock lock(&mutex_);
    if (peers_.contains(stage)) return;
  }
  const absl::StatusOr<PeerId> peer = data_plane_->Connect(address);
  BATON_CHECK(peer.ok()) << peer.status();
  MutexLock lock(&mutex_);
  peers_[stage] = *peer;
  const auto route = RouteBetween(kFakeKvHeads, writer, rank_);
  if (route.has_value()) heads_[stage.incarnation] = route->heads;
}

Ticket FakeDecode::Grant(int prompt_tokens) {
  Ticket ticket;
  ticket.decode = self_;
  {
    MutexLock lock(&mutex_);
    ticket.generation = next_generation_++;
  }
  ticket.slot = static_cast<uint32_t>(ticket.generation % 7);
  ticket.prompt_tokens = prompt_tokens;
  ticket.prompt_pages = (prompt_tokens + kFakePageSize - 1) / kFakePageSize;
  GrantToo(ticket);
  return ticket;
}

void FakeDecode::GrantToo(const Ticket& ticket) {
  MutexLock lock(&mutex_);
  Transfer& transfer = transfers_[ticket.generation];
  transfer.ticket = ticket;
  transfer.pages.assign(FloatsPerLayer() * static_cast<size_t>(kFakeLayers * ticket.prompt_pages),
                        -2.0F);
}

std::optional<Placement> FakeDecode::OnData(const KvDataHeader& header, size_t payload_bytes) {
  const auto found = transfers_.find(header.generation);
  if (found == transfers_.end()) return std::nullopt;
  Transfer& transfer = found->second;
  const Ticket& ticket = transfer.ticket;
  const auto sent = heads_.find(header.writer_incarnation);
  if (sent == heads_.end()) {
    transfer.error = "a rank without a route sends";
    return std::nullopt;
  }
  const IndexRange heads = sent->second;
  const size_t band = kFloatsPerRun * 2 * static_cast<size_t>(heads.size() * header.layers.size());
  if (header.slot != ticket.slot || header.decode_incarnation != self_.incarnation ||
      header.first_page + header.page_count > ticket.prompt_pages || header.part != 0 ||
      payload_bytes != band * sizeof(float) * static_cast<size_t>(header.page_count)) {
    transfer.error = "a header does not fit the ticket";
    return std::nullopt;
  }
  Placement placement;
  placement.receipt = next_receipt_++;
  placing_[placement.receipt] = header.generation;
  ++transfer.placing;
  transfer.checksum_sums[header.writer_incarnation] += header.checksum;
  for (int page = header.first_page; page < header.first_page + header.page_count; ++page) {
    ++transfer.runs[{header.writer_incarnation, page}];
    float* const layers =
        transfer.pages.data() +
        FloatsPerLayer() * static_cast<size_t>(page * kFakeLayers + header.layers.begin);
    for (int value = 0; value < 2 * header.layers.size(); ++value) {
      float* const target = layers + kFloatsPerRun * static_cast<size_t>(value * own_.size() +
                                                                         heads.begin - own_.begin);
      const size_t floats = kFloatsPerRun * static_cast<size_t>(heads.size());
      placement.runs.push_back(std::as_writable_bytes(std::span<float>(target, floats)));
    }
  }
  return placement;
}

std::optional<Placement> FakeDecode::OnHeader(std::span<const std::byte> header,
                                              size_t payload_bytes) {
  MutexLock lock(&mutex_);
  const auto data = DecodeKvData(header);
  if (data.ok()) return OnData(*data, payload_bytes);
  const auto control = DecodeKvControl(header);
  BATON_CHECK(control.ok()) << control.status();
  if (const auto* beat = std::get_if<KvHeartbeat>(&*control)) {
    heard_.insert(beat->sender.incarnation);
  } else {
    const auto& commit = std::get<KvCommit>(*control);
    const auto found = transfers_.find(commit.generation);
    if (found == transfers_.end()) return std::nullopt;
    Transfer& transfer = found->second;
    const auto [first, fresh] = transfer.commits.emplace(commit.writer_incarnation, commit);
    if (!fresh && first->second != commit) transfer.error = "a stage commits twice";
    transfer.untold.insert(commit.writer_incarnation);
    SendReceipts(transfer);
  }
  return Placement{{}, 0};
}

void FakeDecode::OnPlaced(uint64_t receipt, const absl::Status& status) {
  if (receipt == 0) return;
  MutexLock lock(&mutex_);
  Transfer& transfer = transfers_.at(placing_.at(receipt));
  placing_.erase(receipt);
  --transfer.placing;
  if (!status.ok()) transfer.error = std::string(status.message());
  SendReceipts(transfer);
}

void FakeDecode::SendReceipts(Transfer& transfer) {
  if (transfer.placing > 0) return;
  for (auto untold = transfer.untold.begin(); untold != transfer.untold.end();) {
    const uint64_t incarnation = *untold;
    const auto pages =
        std::count_if(transfer.runs.begin(), transfer.runs.end(),
                      [&](const auto& run) { return run.first.first == incarnation; });
    const KvCommit& commit = transfer.commits.at(incarnation);
    const InstanceRef writer{commit.writer_id, commit.writer_incarnation};
    const auto peer = peers_.find(writer);
    if (pages < transfer.ticket.prompt_pages || peer == peers_.end()) {
      ++untold;
      continue;
    }
    Outgoing message;
    message.kind = MessageKind::kKvControl;
    message.header = EncodeKvReceipt({writer, transfer.ticket.slot, transfer.ticket.generation,
                                      self_.incarnation, KvReceiptKind::kComplete, 0});
    data_plane_->Send(peer->second, std::move(message));
    untold = transfer.untold.erase(untold);
  }
}

bool FakeDecode::Complete(const Transfer& transfer, int writers) {
  if (!transfer.error.empty()) return true;
  return transfer.placing == 0 && transfer.commits.size() == static_cast<size_t>(writers) &&
         transfer.runs.size() ==
             static_cast<size_t>(writers) * static_cast<size_t>(transfer.ticket.prompt_pages);
}

std::string FakeDecode::Compare(const Transfer& transfer, const std::vector<int32_t>& prompt,
                                int writers, int tokens) const {
  if (!transfer.error.empty()) return transfer.error;
  for (const auto& [run, times] : transfer.runs) {
    if (times != 1) return absl::StrCat("page ", run.second, " came ", times, " times");
  }
  int with_token = 0;
  for (const auto& [incarnation, commit] : transfer.commits) {
    if (commit.checksum_sum != transfer.checksum_sums.at(incarnation))
      return "checksum sums differ";
    if (!commit.has_first_token) continue;
    ++with_token;
    const int expected = FakeFirstToken(prompt.back(), static_cast<int>(prompt.size()));
    if (commit.first_token.token != expected) {
      return absl::StrCat("first token ", commit.first_token.token, ", not ", expected);
    }
    if (commit.layers.end != kFakeLayers) return "the first token comes from another stage";
  }
  if (with_token != tokens) return absl::StrCat(with_token, " first tokens");
  for (size_t i = 0; i < transfer.pages.size(); ++i) {
    const int dim = static_cast<int>(i % kFakeHeadDim);
    const int slot = static_cast<int>(i / kFakeHeadDim % kFakePageSize);
    const int run = static_cast<int>(i / kFloatsPerRun) % runs_per_layer();
    const int layer = static_cast<int>(i / FloatsPerLayer()) % kFakeLayers;
    const int page = static_cast<int>(i / FloatsPerLayer()) / kFakeLayers;
    const int position = page * kFakePageSize + slot;
    const float expected = position < static_cast<int>(prompt.size())
                               ? FakeKv(prompt[static_cast<size_t>(position)], position, layer,
                                        run / own_.size(), own_.begin + run % own_.size(), dim)
                               : 0.0F;
    if (transfer.pages[i] == expected) continue;
    return absl::StrCat("KV of layer ", layer, ", position ", position, " is ", transfer.pages[i],
                        ", not ", expected, " (", writers, " writers)");
  }
  return "";
}

bool FakeDecode::WaitFor(const std::function<bool()>& condition) {
  const int64_t until_us = NowUs() + kLimitUs;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (condition()) return true;
    }
    if (NowUs() > until_us) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string FakeDecode::Check(const Ticket& ticket, const std::vector<int32_t>& prompt, int writers,
                              int tokens) {
  const bool complete = WaitFor([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Complete(transfers_.at(ticket.generation), writers);
  });
  MutexLock lock(&mutex_);
  const Transfer& transfer = transfers_.at(ticket.generation);
  if (complete) return Compare(transfer, prompt, writers, tokens);
  return absl::StrCat("incomplete: ", transfer.runs.size(), " runs, ", transfer.commits.size(),
                      " commits");
}

int32_t FakeDecode::FirstToken(const Ticket& ticket) {
  int32_t token = -1;
  WaitFor([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [incarnation, commit] : transfers_.at(ticket.generation).commits) {
      if (commit.has_first_token) token = commit.first_token.token;
    }
    return token >= 0;
  });
  return token;
}

bool FakeDecode::HeardFrom(const std::set<uint64_t>& writer_incarnations) {
  return WaitFor([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::includes(heard_.begin(), heard_.end(), writer_incarnations.begin(),
                         writer_incarnations.end());
  });
}

}  // namespace baton::prefill
