// Runs a fuzz target on the files of a folder, then on changes of them:
//
//   TARGET [--changes=N] [--seed=S] [--seconds=T] [--keep=FOLDER] FOLDER|FILE...
//
// The same seed makes the same changes. With --seconds it goes on until the time is over. Each
// input is written into the folder of --keep before it runs, so that what crashed or hung is there.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxInputBytes = 1 << 16;

struct Arguments {
  int64_t changes = 0;
  int64_t seconds = 0;
  uint64_t seed = 1;
  std::string keep;
  std::vector<std::string> corpus;
};

std::vector<std::string> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // A folder has no order of its own.
  std::vector<std::string> inputs;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// A few changes of an input, with parts of others.
class Changer {
 public:
  Changer(const std::vector<std::string>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string input = corpus_[random_.Below(corpus_.size())];
    const int64_t times = random_.Between(1, 6);
    for (int64_t i = 0; i < times; ++i) Change(input);
    input.resize(std::min(input.size(), kMaxInputBytes));
    return input;
  }

 private:
  size_t Place(const std::string& in) { return random_.Below(in.size() + 1); }
  std::string Part(const std::string& of) {
    const size_t at = Place(of);
    return of.substr(at, random_.Below(std::min<size_t>(of.size() - at, 64) + 1));
  }
  void Change(std::string& input) {
    const size_t at = Place(input);
    switch (random_.Below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(random_.Below(256));
        return;
      case 1:
        input.erase(at, random_.Below(16));
        return;
      case 2:
        input.insert(at, Part(input));
        return;
      case 3:
        input.insert(at, Part(corpus_[random_.Below(corpus_.size())]));
        return;
      case 4: {  // One thing many times: what nests, and what counts.
        const std::string part = Part(input).substr(0, 8);
        for (uint64_t i = random_.Below(200); i > 0; --i) input.insert(at, part);
        return;
      }
      case 5:
        input.insert(at, std::to_string(random_.Next() >> random_.Below(64)));
        return;
      default:
        input.insert(at, 1, "{}[]()|*+?\\\"'<>:,.%-0\n"[random_.Below(22)]);
    }
  }

  const std::vector<std::string>& corpus_;
  Random random_;
};

void RunOne(const std::string& input, const std::string& keep) {
  if (!keep.empty()) std::ofstream(keep + "/last", std::ios::binary) << input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

int Main(const Arguments& arguments) {
  const std::vector<std::string> corpus = ReadCorpus(arguments.corpus);
  if (corpus.empty()) {
    std::fprintf(stderr, "there is no input\n");
    return 2;
  }
  for (const std::string& input : corpus) RunOne(input, arguments.keep);
  Changer changer(corpus, arguments.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(arguments.seconds);
  int64_t done = 0;
  while (done < arguments.changes || std::chrono::steady_clock::now() < end) {
    RunOne(changer.Next(), arguments.keep);
    ++done;
  }
  if (!arguments.keep.empty()) fs::remove(arguments.keep + "/last");
  std::printf("%zu inputs and %lld changes of them\n", corpus.size(), static_cast<long long>(done));
  return 0;
}

}  // namespace
}  // namespace baton

int main(int count, char** values) {
  baton::Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view value = values[i];
    const auto number = [&](std::string_view flag) {
      return std::strtoll(std::string(value.substr(flag.size())).c_str(), nullptr, 10);
    };
    if (value.starts_with("--changes=")) {
      arguments.changes = number("--changes=");
    } else if (value.starts_with("--seed=")) {
      arguments.seed = static_cast<uint64_t>(number("--seed="));
    } else if (value.starts_with("--seconds=")) {
      arguments.seconds = number("--seconds=");
    } else if (value.starts_with("--keep=")) {
      arguments.keep = value.substr(7);
    } else {
      arguments.corpus.emplace_back(value);
    }
  }
  return baton::Main(arguments);
}
