// Encoding and decoding speed: bazel run //common/tokenizer:tokenizer_benchmark
#include <benchmark/benchmark.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BATON_CHECK(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<Tokenizer> Load() {
  return Tokenizer::LoadFromJson(Read("common/tokenizer/testdata/llama3_tokenizer.json")).value();
}

// A mebibyte of this package's own README.
std::string Prose() {
  const std::string readme = Read("common/tokenizer/README.md");
  std::string text;
  while (text.size() < (1 << 20)) text += readme;
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  const auto tokenizer = Load();
  size_t tokens = 0;
  for (auto _ : state) tokens += tokenizer->Encode(text, false, true)->size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void EncodeProse(benchmark::State& state) { Encode(state, Prose()); }
BENCHMARK(EncodeProse)->Unit(benchmark::kMillisecond);

void EncodeOneCharacter(benchmark::State& state) {
  Encode(state, std::string(static_cast<size_t>(state.range(0)), '-'));  // A "--" is a token.
}
BENCHMARK(EncodeOneCharacter)->Range(1 << 14, 1 << 20)->Unit(benchmark::kMillisecond);

void DecodeProse(benchmark::State& state) {
  const auto tokenizer = Load();
  const std::string text = Prose();
  const auto ids = tokenizer->Encode(text, false, true).value();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Decode(ids, true));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(DecodeProse)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace baton
