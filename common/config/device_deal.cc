#include "common/config/device_deal.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/config/mode.h"
#include "common/config/node_share.h"

namespace baton::config {
namespace {

constexpr absl::string_view kOne = "cuda:";

// The option whose ranks would share a GPU if all workers had one; null if none would.
const char* SharingRanks(const v1::Options& options, Role role) {
  if (role == v1::OptionSpec::UP) {
    if (options.tp_size() > 1) return "tp_size";
    return !IsColocated(options) && options.decode_tp_size() > 1 ? "decode_tp_size" : nullptr;
  }
  const std::vector<StageRank> places = PlacesHere(options);
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].stage == places[i - 1].stage) return "tp_size";
  }
  return nullptr;
}

std::string GpuCount(int64_t count) {
  return absl::StrCat(count == 0 ? "no" : absl::StrCat(count), count == 1 ? " GPU" : " GPUs");
}

absl::Status TooFew(const v1::Options& options, int64_t workers, int64_t last,
                    const VisibleGpus& visible) {
  std::string wanted = absl::StrCat("GPU ", options.base_gpu_id());
  if (workers > 1) {
    wanted = absl::StrCat("GPUs ", options.base_gpu_id(), " to ", last);
    if (options.gpu_id_step() > 1) absl::StrAppend(&wanted, " in steps of ", options.gpu_id_step());
  }
  return InvalidField(
      "device",
      absl::StrCat(
          "got cuda, which gives ", workers, workers == 1 ? " worker " : " workers ", wanted, "; ",
          visible.source, " has ", GpuCount(*visible.count),
          *visible.count > 0 && workers > 1 ? ". cuda:N is one GPU that all workers share" : ""));
}

}  // namespace

int64_t WorkersHere(const v1::Options& options, Role role) {
  if (role != v1::OptionSpec::UP) return static_cast<int64_t>(PlacesHere(options).size());
  const int64_t decodes = IsColocated(options) ? 0
                                               : options.decodes() * options.decode_pp_size() *
                                                     options.decode_tp_size();
  return options.prefill_chains() * options.pp_size() * options.tp_size() + decodes;
}

absl::StatusOr<std::vector<std::string>> DealDevices(const v1::Options& options, Role role,
                                                     const VisibleGpus& visible) {
  const auto workers = static_cast<size_t>(WorkersHere(options, role));
  const std::string& device = options.device();
  if (device == "cuda") {
    const int64_t last =
        options.base_gpu_id() + (static_cast<int64_t>(workers) - 1) * options.gpu_id_step();
    if (visible.count.value_or(last + 1) <= last) {
      return TooFew(options, static_cast<int64_t>(workers), last, visible);
    }
    std::vector<std::string> dealt;
    for (int64_t gpu = options.base_gpu_id(); gpu <= last; gpu += options.gpu_id_step()) {
      dealt.push_back(absl::StrCat(kOne, gpu));
    }
    return dealt;
  }
  int64_t number = 0;
  absl::string_view numbered = device;
  if (absl::ConsumePrefix(&numbered, kOne) && absl::SimpleAtoi(numbered, &number)) {
    if (visible.count.value_or(number + 1) <= number) {
      return InvalidField("device", absl::StrCat("got ", device, "; ", visible.source, " has ",
                                                 GpuCount(*visible.count)));
    }
    if (const char* const option = SharingRanks(options, role); option != nullptr) {
      return InvalidField(option, absl::StrCat("ranks of one stage sum by NCCL, which takes a GPU "
                                               "for each; --device cuda deals them out, and ",
                                               device, " is one for all"));
    }
  }
  return std::vector<std::string>(workers, device);
}

}  // namespace baton::config
