#include "common/preflight/memory_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/mode.h"

namespace baton {
namespace {

using v1::OptionSpec;

constexpr int64_t kMinKvTokens = 128;  // As in config.proto.

std::string Gib(int64_t bytes) {
  constexpr double kMib = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMib;
  return mib < 1024 ? absl::StrFormat("%.0f MiB", mib) : absl::StrFormat("%.1f GiB", mib / 1024);
}

class MemoryChecks {
 public:
  MemoryChecks(const config::ParsedOptions& given, const ModelFacts& facts, PreflightReport& report)
      : given_(given), facts_(facts), report_(report) {}

  void Run() {
    SizeByFraction();
    const auto memory = Plan();
    if (!memory.ok()) {
      report_.findings.push_back(ErrorFinding("pp_size", memory.status()));
      return;
    }
    report_.memory = *memory;
    report_.device_memory = OnDevices(*memory);
    if (report_.values.memory_check() == "off") return;
    CheckHost();
    for (const DeviceMemory& device : report_.device_memory) CheckDevice(device);
  }

 private:
  absl::StatusOr<HostMemory> Plan() const {
    return PlanMemory(report_.values, report_.role, facts_, report_.context_tokens);
  }

  std::vector<DeviceMemory> OnDevices(const HostMemory& memory) const {
    if (report_.devices.empty()) return {};
    constexpr int64_t kMib = int64_t{1} << 20;
    return PlanDevices(memory, report_.devices, report_.gpus,
                       report_.values.device_memory() * kMib);
  }

  void Add(Finding::Severity severity, const std::string& option, std::string message) {
    report_.findings.push_back({severity, option, std::move(message)});
  }

  Finding::Severity Shortage() const {
    return report_.values.memory_check() == "refuse" ? Finding::Severity::kShortage
                                                     : Finding::Severity::kWarning;
  }

  void CheckHost() {
    const HostMemory& memory = *report_.memory;
    const int64_t available = report_.machine.available_bytes;
    if (available == 0 || memory.total() <= available) return;
    const std::string shortfall =
        absl::StrCat("needs ", Gib(memory.total()), ", ", Gib(memory.total() - available),
                     " more than the ", Gib(available), " that ", report_.machine.limit, " leaves");
    const int64_t others = memory.total() - memory.weights() - memory.kv();
    SayWhatFits(shortfall, memory.weights(),
                LargestKvTokens(memory, report_.values.page_size(), available - others));
  }

  void CheckDevice(const DeviceMemory& device) {
    if (device.available == 0 || device.total() <= device.available) return;
    const std::string shortfall = absl::StrCat(
        device.device, " needs ", Gib(device.total()), ", ", Gib(device.total() - device.available),
        " more than the ", Gib(device.available), " that ", device.limit, " leaves");
    const int64_t others = device.buffers + device.runtime;
    SayWhatFits(shortfall, device.weights,
                LargestKvTokens(device, report_.values.page_size(), device.available - others));
  }

  void SayWhatFits(const std::string& shortfall, int64_t weights, int64_t fits) {
    if (fits >= std::max(report_.values.page_size(), kMinKvTokens)) {
      return Add(Shortage(), "kv_cache_tokens",
                 absl::StrCat(shortfall, "; the largest --kv-cache-tokens that fits is ", fits));
    }
    AddTooLarge(absl::StrCat(shortfall, "; ", Gib(weights),
                             " of it are weights, so no --kv-cache-tokens fits: take "));
  }

  // What may help where the weights alone are too much.
  void AddTooLarge(const std::string& shortfall) {
    const v1::Options& values = report_.values;
    const bool colocated = config::IsColocated(values);
    const bool up = report_.role == OptionSpec::UP;
    const bool several = up && (colocated ? values.prefill_chains() > 1
                                          : values.prefill_chains() + values.decodes() > 2);
    const char* const copies = colocated ? "prefill_chains" : "decodes";
    const char* const fewer =
        colocated ? "fewer --prefill-chains, " : "fewer --prefill-chains and --decodes, ";
    Add(Shortage(), several ? copies : "model_path",
        absl::StrCat(shortfall, several ? fewer : "",
                     "a smaller model, or spread the processes over more machines"));
  }

  // --mem-fraction-static: weights and KV of this host's processes together take that part of the
  // memory that is available now, on GPUs those of each GPU of the GPU's; an explicit
  // --kv-cache-tokens is an upper bound.
  void SizeByFraction() {
    const std::string text = std::exchange(*report_.values.mutable_mem_fraction_static(), "");
    double fraction = 0;
    if (text.empty() || report_.role == OptionSpec::ROUTER) return;
    if (!absl::SimpleAtod(text, &fraction)) return Refuse("no number");
    if (report_.values.device() != "cpu" && report_.devices.empty()) return;  // Refused already.
    const auto memory = Plan();
    if (!memory.ok()) return;  // Run says so.
    std::optional<int64_t> tokens = report_.devices.empty()
                                        ? ByHost(*memory, text, fraction)
                                        : ByDevices(OnDevices(*memory), text, fraction);
    if (!tokens.has_value()) return;
    const auto source = given_.sources.find("kv_cache_tokens");
    const bool bounded = source != given_.sources.end() &&
                         source->second.kind != config::OptionSource::Kind::kDefault;
    if (bounded) tokens = std::min(*tokens, report_.values.kv_cache_tokens());
    report_.values.set_kv_cache_tokens(*tokens);
  }

  void Refuse(std::string message) {
    Add(Finding::Severity::kError, "mem_fraction_static", std::move(message));
  }

  std::optional<int64_t> Enough(int64_t tokens, const std::string& shortage) {
    if (tokens >= std::max(report_.values.page_size(), kMinKvTokens)) return tokens;
    Add(Finding::Severity::kShortage, "mem_fraction_static", shortage);
    return std::nullopt;
  }

  std::optional<int64_t> ByHost(const HostMemory& memory, const std::string& text,
                                double fraction) {
    const int64_t available = report_.machine.available_bytes;
    if (available == 0) {
      Refuse("this machine does not say how much memory it has");
      return std::nullopt;
    }
    const auto static_bytes = static_cast<int64_t>(fraction * static_cast<double>(available));
    return Enough(LargestKvTokens(memory, report_.values.page_size(), static_bytes),
                  absl::StrCat("got ", text, ": ", Gib(static_bytes), " of the ", Gib(available),
                               " that ", report_.machine.limit,
                               " leaves, but the weights alone take ", Gib(memory.weights())));
  }

  // What the tightest GPU has room for.
  std::optional<int64_t> ByDevices(const std::vector<DeviceMemory>& devices,
                                   const std::string& text, double fraction) {
    std::optional<int64_t> tokens;
    for (const DeviceMemory& device : devices) {
      if (device.available == 0) {
        Refuse(absl::StrCat("is a part of the memory of ", device.device,
                            ", and no driver says how much that is; --device-memory says it"));
        return std::nullopt;
      }
      const auto static_bytes =
          static_cast<int64_t>(fraction * static_cast<double>(device.available));
      const auto fits =
          Enough(LargestKvTokens(device, report_.values.page_size(), static_bytes),
                 absl::StrCat("got ", text, ": ", Gib(static_bytes), " of the ",
                              Gib(device.available), " that ", device.limit, " leaves of ",
                              device.device, ", but the weights alone take ", Gib(device.weights)));
      if (!fits.has_value()) return std::nullopt;
      tokens = std::min(tokens.value_or(*fits), *fits);
    }
    return tokens;
  }

  const config::ParsedOptions& given_;
  const ModelFacts& facts_;
  PreflightReport& report_;
};

}  // namespace

void CheckMemory(const config::ParsedOptions& given, const ModelFacts& facts,
                 PreflightReport& report) {
  MemoryChecks(given, facts, report).Run();
}

}  // namespace baton
