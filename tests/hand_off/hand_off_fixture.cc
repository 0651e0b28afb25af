#include "tests/hand_off/hand_off_fixture.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/testing/fake_device.h"
#include "common/kv/head_routes.h"

namespace baton::hand_off {
namespace {

constexpr std::chrono::seconds kPatience{20};  // Only a failing test waits that long.
constexpr LayerRange kStages[] = {{0, 2}, {2, kLayers}};
constexpr std::byte kPrefillFill{0xA5};
constexpr std::byte kDecodeFill{0x5C};

// A process's pages without anything that computes.
class Pages final : public Executor {
 public:
  Pages(const ModelConfig& config, const KvGeometry& kv, TensorRank rank, std::byte fill)
      : config_(config),
        kv_(kv),
        rank_(rank),
        bytes_(kv.PageBytes() * static_cast<size_t>(kv.page_count), fill),
        memory_(kv, bytes_) {}

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return memory_; }
  ElementType activation_type() const override { return kv_.element_type; }
  TensorRank tensor_rank() const override { return rank_; }
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t) override {
    return absl::UnimplementedError("no activations");
  }
  void Submit(Step, std::function<void(StepResult)> done) override {
    done(StepResult{absl::UnimplementedError("nothing computes"), 0, {}, {}});
  }
  int64_t running_since_us() const override { return 0; }
  void Stop() override {}

  // One head's keys or values in a layer, [token][row]; `head` is this process's local index.
  std::span<std::byte> Head(int page, int layer, int value, int head) {
    const int index = ((page * kv_.layers() + layer) * kv_.planes + value) * kv_.kv_heads + head;
    return std::span(bytes_).subspan(static_cast<size_t>(index) * kv_.HeadBytes(), kv_.HeadBytes());
  }

 private:
  const ModelConfig config_;
  const KvGeometry kv_;
  const TensorRank rank_;
  std::vector<std::byte> bytes_;
  HostKvMemory memory_;
};

// What a head's keys or values of one page are: other bytes for any other place.
void FillPlace(std::span<std::byte> bytes, std::initializer_list<int> place) {
  uint64_t mixed = 0;
  for (const int part : place) {
    mixed = (mixed ^ static_cast<uint64_t>(part + 1)) * 0x9E3779B97F4A7C15U;
  }
  for (std::byte& byte : bytes) {
    mixed += 0x9E3779B97F4A7C15U;
    byte = static_cast<std::byte>(mixed >> 56);
  }
}

}  // namespace

Planes::Planes(int count) {
  for (int i = 0; i < count; ++i) {
    auto plane = DataPlane::Create({});
    BATON_CHECK(plane.ok()) << plane.status();
    planes_.push_back(*std::move(plane));
  }
  for (size_t from = 0; from < planes_.size(); ++from) {
    for (size_t to = 0; to < planes_.size(); ++to) {
      if (from == to) continue;
      const auto peer = planes_[from]->Connect(planes_[to]->address());
      BATON_CHECK(peer.ok()) << peer.status();
      peers_[{from, to}] = *peer;
    }
  }
}

Planes::~Planes() {
  for (const auto& plane : planes_) plane->Shutdown();
}

struct HandOff::Rank {
  Pages* pages = nullptr;
  std::unique_ptr<Executor> executor;  // `pages`, or a device around them.
};

struct HandOff::Sender {
  KvWriter who;
  size_t plane = 0;
  std::unique_ptr<Rank> rank;
  std::unique_ptr<prefill::KvSender> sender;
};

struct HandOff::Receiver {
  TensorRank place;
  size_t plane = 0;
  std::unique_ptr<Rank> rank;
  std::map<uint64_t, KvCommitted> committed;  // By generation; guarded by the test's mutex, as
  std::string failed;                         // this is.
  std::unique_ptr<decode::KvReceiver> receiver;
};

HandOff::HandOff(const Shape& shape, Planes& planes)
    : shape_(shape),
      planes_(planes),
      metrics_({.role = MetricRole::kDecode, .model_name = "none", .instance_id = "hand-off"}) {
  size_t plane = 0;
  for (int rank = 0; rank < shape.decode_ranks; ++rank) {
    MakeReceiver({rank, shape.decode_ranks}, plane++);
  }
  const auto sources = SourcesOf(shape.kv_heads, shape.prefill_ranks, shape.decode_ranks);
  BATON_CHECK(sources.ok()) << sources.status();
  for (const LayerRange layers : kStages) {
    for (const int rank : *sources) MakeSender(layers, {rank, shape.prefill_ranks}, plane++);
  }
}

// What was sent has ended; a receipt that was asked for twice may still be on its way, so the
// handlers go first, and then what is left of their work.
HandOff::~HandOff() {
  const size_t planes = senders_.size() + receivers_.size();
  for (size_t i = 0; i < planes; ++i) {
    planes_.at(i).SetTimer(1'000'000, nullptr);
    planes_.at(i).Unregister(MessageKind::kKvControl);
    if (i < receivers_.size()) planes_.at(i).Unregister(MessageKind::kKvPages);
  }
  for (size_t i = 0; i < planes; ++i) {
    std::promise<void> behind;
    BATON_CHECK(planes_.at(i).PostReserved([&behind] { behind.set_value(); })) << "a plane ended";
    behind.get_future().wait();
  }
}

InstanceRef HandOff::DecodeRef(int rank) const {
  return {absl::StrCat("decode-0-", rank), 500 + static_cast<uint64_t>(rank)};
}

std::unique_ptr<HandOff::Rank> HandOff::MakeRank(LayerRange layers, TensorRank rank,
                                                 std::byte fill) const {
  ModelConfig config;
  config.num_hidden_layers = kLayers;
  config.num_key_value_heads = shape_.kv_heads;
  config.head_dim = shape_.head_dim;
  config.kv_planes = shape_.planes;
  const IndexRange heads = KvHeadsOf(shape_.kv_heads, rank);
  KvGeometry kv;
  kv.layer_begin = layers.begin;
  kv.layer_end = layers.end;
  kv.head_begin = heads.begin;
  kv.kv_heads = heads.size();
  kv.head_dim = shape_.head_dim;
  kv.page_size = shape_.page_size;
  kv.page_count = shape_.page_count;
  kv.element_type = shape_.type;
  kv.planes = shape_.planes;
  auto made = std::make_unique<Rank>();
  auto pages = std::make_unique<Pages>(config, kv, rank, fill);
  made->pages = pages.get();
  made->executor = std::move(pages);
  if (shape_.on_devices) {
    made->executor = std::make_unique<FakeDevice>(std::move(made->executor), FakeDevice::Options{});
  }
  return made;
}

void HandOff::MakeReceiver(TensorRank rank, size_t plane) {
  auto made = std::make_unique<Receiver>();
  Receiver* const receiver = made.get();
  made->place = rank;
  made->plane = plane;
  made->rank = MakeRank({0, kLayers}, rank, kDecodeFill);
  decode::KvReceiver::Options options;
  options.table.self = DecodeRef(rank.rank);
  options.table.layout = made->rank->executor->kv().layout();
  options.table.rank = rank;
  options.table.model_kv_heads = shape_.kv_heads;
  options.table.slots = 8;
  options.table.writer_lease_us = 60'000'000;  // No heartbeats here.
  options.executor = made->rank->executor.get();
  options.data_plane = &planes_.at(plane);
  options.metrics = &metrics_;
  options.find_peer = [this, plane](const InstanceRef& writer) -> std::optional<PeerId> {
    for (const auto& sender : senders_) {
      if (sender->who.instance == writer) return planes_.Peer(plane, sender->plane);
    }
    return std::nullopt;
  };
  options.deliver = [this, receiver](const std::vector<LeaseEvent>& events) {
    MutexLock lock(&mutex_);
    for (const LeaseEvent& event : events) {
      if (const auto* committed = std::get_if<KvCommitted>(&event)) {
        receiver->committed[committed->generation] = *committed;
      } else if (const auto* failed = std::get_if<KvFailed>(&event)) {
        receiver->failed = failed->status.ToString();
      }
    }
    return true;
  };
  made->receiver = std::make_unique<decode::KvReceiver>(std::move(options));
  const absl::Status started = made->receiver->Start();
  BATON_CHECK(started.ok()) << started;
  receivers_.push_back(std::move(made));
}

void HandOff::MakeSender(LayerRange layers, TensorRank rank, size_t plane) {
  auto made = std::make_unique<Sender>();
  const auto number = static_cast<uint64_t>(senders_.size());
  made->who = {{absl::StrCat("prefill-", number), 900 + number}, layers, rank};
  made->plane = plane;
  made->rank = MakeRank(layers, rank, kPrefillFill);
  prefill::KvSender::Options options;
  options.self = made->who.instance;
  options.executor = made->rank->executor.get();
  options.data_plane = &planes_.at(plane);
  options.metrics = &metrics_;
  options.find_peer = [this, plane](const InstanceRef& decode) -> std::optional<PeerId> {
    MutexLock lock(&mutex_);
    for (int to = 0; to < shape_.decode_ranks; ++to) {
      if (DecodeRef(to) != decode || disconnected_.contains(to)) continue;
      return planes_.Peer(plane, static_cast<size_t>(to));
    }
    return std::nullopt;
  };
  options.on_event = [this](const prefill::StageEvent& event) {
    MutexLock lock(&mutex_);
    sent_.push_back(std::get<prefill::KvSent>(event));
  };
  made->sender = std::make_unique<prefill::KvSender>(std::move(options));
  const absl::Status started = made->sender->Start();
  BATON_CHECK(started.ok()) << started;
  prefill::KvSender* const sender = made->sender.get();
  planes_.at(plane).SetTimer(50'000, [sender](int64_t now_us) { sender->Tick(now_us); });
  writers_.push_back(made->who);
  senders_.push_back(std::move(made));
}

// The prompt's pages of a stage's rank, also where no token of it is: that must not travel.
void HandOff::Fill(const Rank& rank, const std::vector<int>& pages) const {
  const KvGeometry& kv = rank.pages->kv();
  for (size_t i = 0; i < pages.size(); ++i) {
    for (int layer = 0; layer < kv.layers(); ++layer) {
      for (int value = 0; value < kv.planes; ++value) {
        for (int head = 0; head < kv.kv_heads; ++head) {
          FillPlace(rank.pages->Head(pages[i], layer, value, head),
                    {static_cast<int>(pages.size()), static_cast<int>(i), kv.layer_begin + layer,
                     value, kv.head_begin + head});
        }
      }
    }
  }
}

Ticket HandOff::Begin(uint64_t number, const Prompt& prompt) {
  Ticket ticket;
  ticket.decode = DecodeRef(0);
  ticket.slot = static_cast<uint32_t>(number % 8);
  ticket.generation = number;
  ticket.prompt_tokens = prompt.tokens;
  ticket.prompt_pages = static_cast<int>(prompt.decode_pages.size());
  for (int rank = 1; rank < shape_.decode_ranks; ++rank) {
    ticket.followers.push_back(DecodeRef(rank));
  }
  for (const auto& receiver : receivers_) {
    receiver->receiver->Grant(
        {ticket.slot, ticket.generation, prompt.decode_pages,
         WritersTo(writers_, shape_.kv_heads, {{0, kLayers}, receiver->place}), kNeverUs});
    std::promise<void> granted;
    receiver->receiver->After([&granted] { granted.set_value(); });
    granted.get_future().wait();
  }
  const auto cut = static_cast<std::ptrdiff_t>(prompt.prefill_pages.size() / 2);
  for (const auto& sender : senders_) {
    Fill(*sender->rank, prompt.prefill_pages);
    const auto begin = prompt.prefill_pages.begin();
    const auto end = prompt.prefill_pages.end();
    size_t sends = 2;
    if (cut > 0) {
      ++sends;
      sender->sender->Send({1, next_send_id_++, number, ticket, 0, {begin, begin + cut}});
    }
    sender->sender->Send(
        {1, next_send_id_++, number, ticket, static_cast<int>(cut), {begin + cut, end}});
    prefill::SendCommit commit{1, next_send_id_++, number, ticket, {}};
    const KvWriter& who = sender->who;
    if (who.layers.end == kLayers && who.tensor_rank.rank == 0) {
      commit.first_token = SampledToken{.token = static_cast<int32_t>(number), .logprob = -1};
    }
    sender->sender->Commit(commit);
    MutexLock lock(&mutex_);
    sends_ += sends;
  }
  return ticket;
}

bool HandOff::Await(const std::function<bool()>& condition) {
  MutexLock lock(&mutex_);
  return mutex_.AwaitFor(kPatience, condition);
}

std::string HandOff::AwaitEnd(const Ticket& ticket) {
  const bool ended = Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return sent_.size() == sends_ &&
           std::all_of(receivers_.begin(), receivers_.end(), [&](const auto& receiver) {
             return receiver->committed.contains(ticket.generation) || !receiver->failed.empty();
           });
  });
  MutexLock lock(&mutex_);
  for (const prefill::KvSent& sent : sent_) {
    if (!sent.status.ok()) return sent.status.ToString();
  }
  for (const auto& receiver : receivers_) {
    if (!receiver->failed.empty()) return receiver->failed;
    if (!ended) continue;
    const KvCommitted& committed = receiver->committed.at(ticket.generation);
    const TensorRank drawing{0, shape_.prefill_ranks};
    const bool hears = RouteBetween(shape_.kv_heads, drawing, receiver->place).has_value();
    if (committed.first_token.has_value() != hears ||
        (hears && committed.first_token->token != static_cast<int32_t>(ticket.generation))) {
      return absl::StrCat("rank ", receiver->place.rank, " has another first token or none");
    }
  }
  return ended ? "" : absl::StrCat(sent_.size(), " of ", sends_, " sends ended in time");
}

absl::Status HandOff::AwaitFailure() {
  // All of them: pages are read until then.
  (void)Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sent_.size() == sends_; });
  MutexLock lock(&mutex_);
  if (sent_.size() != sends_) return absl::DeadlineExceededError("sends have not ended");
  for (const prefill::KvSent& sent : sent_) {
    if (!sent.status.ok()) return sent.status;
  }
  return absl::OkStatus();
}

std::string HandOff::Compare(const std::vector<Prompt>& prompts) const {
  // What one process would have, all bytes of it.
  const std::unique_ptr<Rank> one = MakeRank({0, kLayers}, {}, kDecodeFill);
  for (const Prompt& prompt : prompts) {
    Fill(*one, prompt.decode_pages);
    const int tail = prompt.tokens % shape_.page_size;
    if (tail != 0) one->pages->kv_memory().ClearTail(prompt.decode_pages.back(), tail);
  }
  for (const auto& receiver : receivers_) {
    const KvGeometry& kv = receiver->rank->pages->kv();
    for (int page = 0; page < shape_.page_count; ++page) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int value = 0; value < kv.planes; ++value) {
          for (int head = 0; head < kv.kv_heads; ++head) {
            const auto is = receiver->rank->pages->Head(page, layer, value, head);
            const auto should = one->pages->Head(page, layer, value, kv.head_begin + head);
            if (std::memcmp(is.data(), should.data(), should.size()) == 0) continue;
            return absl::StrCat("rank ", receiver->place.rank, ", page ", page, ", layer ", layer,
                                value == 0 ? ", keys" : ", values", " of its head ", head);
          }
        }
      }
    }
  }
  return "";
}

void HandOff::Disconnect(int decode_rank) {
  MutexLock lock(&mutex_);
  disconnected_.insert(decode_rank);
}

}  // namespace baton::hand_off
