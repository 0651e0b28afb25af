#include "common/collective/testing/rank_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace baton::testing {
namespace {

// Values of very different magnitudes, so that the order of a sum changes its bits.
float ValueAt(uint64_t seed, int rank, int64_t index) {
  const uint64_t draw =
      Mix64(Mix64(seed * 1000 + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(index));
  const auto mantissa = static_cast<float>(static_cast<int32_t>(draw & 0xffff) - 0x8000);
  const auto exponent = static_cast<uint32_t>((draw >> 20) % 24) + 127 - 27;
  return mantissa * std::bit_cast<float>(exponent << 23);
}

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t tail = bits & 0xffff;
  const bool up = tail > 0x8000 || (tail == 0x8000 && ((bits >> 16) & 1) == 1);
  return static_cast<uint16_t>((bits >> 16) + (up ? 1 : 0));
}

float At(const std::vector<std::byte>& bytes, ElementType type, int64_t index) {
  const auto i = static_cast<size_t>(index);
  if (type == ElementType::kFloat32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    return value;
  }
  uint16_t upper = 0;
  std::memcpy(&upper, bytes.data() + 2 * i, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
}

void Append(float value, ElementType type, std::vector<std::byte>& bytes) {
  const size_t end = bytes.size();
  bytes.resize(end + ElementBytes(type));
  const uint16_t upper = RoundToBf16(value);
  std::memcpy(bytes.data() + end,
              type == ElementType::kFloat32 ? static_cast<const void*>(&value) : &upper,
              ElementBytes(type));
}

TensorView View(std::vector<std::byte>& memory, const Command& command) {
  const std::span<std::byte> bytes = std::span(memory).subspan(static_cast<size_t>(command.lead));
  return {HostSpan(bytes), command.type,
          static_cast<int64_t>(bytes.size() / ElementBytes(command.type)), 1};
}

}  // namespace

std::string Command::ToText() const {
  return absl::StrCat(static_cast<int>(kind), " ", count, " ", static_cast<int>(type), " ", peer,
                      " ", seed, " ", skip, " ", lead);
}

Command Command::FromText(const std::string& text) {
  std::istringstream in(text);
  Command command;
  int kind = 0;
  int type = 0;
  in >> kind >> command.count >> type >> command.peer >> command.seed >> command.skip >>
      command.lead;
  BATON_CHECK(!in.fail()) << text;
  command.kind = static_cast<CollectiveKind>(kind);
  command.type = static_cast<ElementType>(type);
  return command;
}

std::string ToText(const Outcome& outcome) {
  if (outcome.status.ok()) return absl::StrCat("0 ", outcome.hash);
  return absl::StrCat(static_cast<int>(outcome.status.code()), " ",
                      RankOf(outcome.status).value_or(-1), " ",
                      std::string(outcome.status.message()));
}

Outcome OutcomeFromText(const std::string& text) {
  std::istringstream in(text);
  int code = 0;
  in >> code;
  Outcome outcome;
  if (code == 0) {
    in >> outcome.hash;
    return outcome;
  }
  int rank = -1;
  in >> rank;
  in.get();
  std::string message;
  std::getline(in, message);
  outcome.status = absl::Status(static_cast<absl::StatusCode>(code), message);
  if (rank >= 0) outcome.status = WithRank(outcome.status, rank);
  return outcome;
}

std::vector<std::byte> InputOf(const Command& command, int rank) {
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < command.count; ++i) {
    Append(ValueAt(command.seed, rank, command.skip + i), command.type, bytes);
  }
  return bytes;
}

std::vector<std::byte> ExpectedOutput(const Command& command, int size) {
  std::vector<std::vector<std::byte>> inputs;
  inputs.reserve(static_cast<size_t>(size));
  for (int peer = 0; peer < size; ++peer) inputs.push_back(InputOf(command, peer));
  std::vector<std::byte> output;
  switch (command.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReceive:
      return inputs[command.peer];
    case CollectiveKind::kSend:
      return {};
    case CollectiveKind::kAllGather:
      for (const auto& input : inputs) output.insert(output.end(), input.begin(), input.end());
      return output;
    case CollectiveKind::kAllReduce:
      break;
  }
  for (int64_t i = 0; i < command.count; ++i) {
    float sum = At(inputs[0], command.type, i);
    for (int peer = 1; peer < size; ++peer) sum += At(inputs[peer], command.type, i);
    Append(sum, command.type, output);
  }
  return output;
}

uint64_t HashOf(const std::vector<std::byte>& bytes) {
  uint64_t hash = Mix64(bytes.size());
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = Mix64(hash ^ word);
  }
  return hash;
}

void RankRunner::Submit(const Command& command) {
  const int rank = communicator_->group().rank;
  const int size = communicator_->group().size();
  auto job = std::make_shared<Job>();
  job->command = command;
  const std::vector<std::byte> input = InputOf(command, rank);
  const auto lead = static_cast<size_t>(command.lead);
  job->input.resize(lead);
  job->input.insert(job->input.end(), input.begin(), input.end());
  const bool in_place =
      command.kind == CollectiveKind::kAllReduce || command.kind == CollectiveKind::kBroadcast;
  if (in_place) {
    job->output = job->input;
  } else if (command.kind == CollectiveKind::kAllGather) {
    job->output.resize(lead + input.size() * static_cast<size_t>(size));
  } else {
    job->output.resize(lead + (command.kind == CollectiveKind::kReceive ? input.size() : 0));
  }
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    jobs_.push_back(job);
    number = submitted_++;
  }
  const TensorView output = View(job->output, command);
  const Collective collective = {command.kind, in_place ? output : View(job->input, command),
                                 output, command.peer};
  communicator_->Submit(collective, [this, job, number](absl::Status status) {
    Finish(job.get(), number, std::move(status));
  });
}

void RankRunner::Finish(Job* job, uint64_t number, absl::Status status) {
  MutexLock lock(&mutex_);
  // Equal inputs must meet equal ends, each once and in order.
  if (job->status || number != finished_) ++faults_;
  ++finished_;
  job->status = std::move(status);
}

Outcome RankRunner::TakeFirst() {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  Outcome outcome = {*job->status};
  if (outcome.status.ok()) {
    const auto lead = static_cast<std::ptrdiff_t>(job->command.lead);
    outcome.hash = HashOf({job->output.begin() + lead, job->output.end()});
  }
  return outcome;
}

std::optional<Outcome> RankRunner::TryTake() {
  MutexLock lock(&mutex_);
  if (jobs_.empty() || !jobs_.front()->status) return std::nullopt;
  return TakeFirst();
}

Outcome RankRunner::Take() {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !jobs_.empty() && jobs_.front()->status.has_value();
  });
  return TakeFirst();
}

int RankRunner::faults() {
  MutexLock lock(&mutex_);
  return faults_;
}

}  // namespace baton::testing
