// Reads the weights of a Hugging Face directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Files are mapped, never copied, and only shards that hold a
// requested tensor are opened, so a pipeline stage touches its own layers' bytes alone.
//
// Files are untrusted. The header's length is checked against the file before it is read, every
// tensor's offsets against the data section and against its shape and dtype with checked
// arithmetic, overlaps and duplicate names are refused, and a shard name can't leave the directory.
// Memory used is bounded by the header's size (at most kMaxHeaderBytes per file).
#ifndef COMMON_MODEL_SAFETENSORS_H_
#define COMMON_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

enum class DType { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3, kF8E5M2 };

const char* DTypeName(DType dtype);  // As in safetensors: "F32", "BF16", ...
size_t DTypeBytes(DType dtype);

// A tensor inside a mapped file; valid as long as the SafetensorsFile or WeightReader lives.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // Little-endian, row-major; alignment of 1 only.

  int64_t ElementCount() const;
};

inline constexpr size_t kMaxHeaderBytes = size_t{100} << 20;

// One mapped .safetensors file. Immutable after Open; any thread.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // NotFound, naming the tensor and the file, when it isn't there.
  absl::StatusOr<TensorView> Find(const std::string& name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

 private:
  SafetensorsFile(std::string path, std::span<const std::byte> mapping)
      : path_(std::move(path)), mapping_(mapping) {}
  absl::Status ParseHeader();

  const std::string path_;
  const std::span<const std::byte> mapping_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// The weights of a model directory, shards opened on demand. One thread.
class WeightReader {
 public:
  // NotFound when the directory has neither model.safetensors nor an index.
  static absl::StatusOr<WeightReader> Open(const std::string& model_path);

  // NotFound when no shard lists `name`; InvalidArgument or DataLoss when its shard is broken.
  absl::StatusOr<TensorView> Find(const std::string& name);
  // Whether `name` is listed; opens the file only of an unsharded model.
  bool Contains(std::string_view name) const;
  // Files opened so far.
  int open_files() const;

 private:
  WeightReader() = default;

  std::string model_path_;
  std::map<std::string, std::string, std::less<>> shard_of_;  // Tensor name -> file name.
  std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>> files_;
};

}  // namespace baton

#endif  // COMMON_MODEL_SAFETENSORS_H_
