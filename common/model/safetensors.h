// Reads the weights of a Hugging Face directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Only shards that hold a requested tensor are opened, and only
// requested bytes are read, so a pipeline stage touches its own layers' bytes alone.
//
// Files are read with pread, not mapped: a file that shrinks under a mapping (an interrupted copy,
// a download that starts anew) ends the process with SIGBUS, while a short read is a status; and
// what a process holds is its own memory, which can be planned. A copy out of the page cache is all
// that it costs, since every weight is converted or packed anyway.
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

class SafetensorsFile;

// Where a tensor lies in its file; valid as long as the SafetensorsFile or WeightReader lives.
struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major.
  uint64_t offset = 0;         // Its first byte in the file.
  size_t byte_count = 0;       // Little-endian.
  const SafetensorsFile* file = nullptr;

  int64_t ElementCount() const;

  // Fills `out` with the bytes from `first_byte` on, which must be the tensor's. DataLoss, naming
  // the file, when the file has become shorter than its header says or can't be read.
  absl::Status Read(size_t first_byte, std::span<std::byte> out) const;
};

inline constexpr size_t kMaxHeaderBytes = size_t{100} << 20;

// One open .safetensors file. Immutable after Open; any thread.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // NotFound, naming the tensor and the file, when it isn't there.
  absl::StatusOr<StoredTensor> Find(const std::string& name) const;
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  // As StoredTensor::Read, by position in the file.
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  SafetensorsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status ParseHeader(size_t file_bytes);

  const std::string path_;
  const int fd_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// The weights of a model directory, shards opened on demand. One thread.
class WeightReader {
 public:
  // NotFound when the directory has neither model.safetensors nor an index.
  static absl::StatusOr<WeightReader> Open(const std::string& model_path);

  // NotFound when no shard lists `name`; InvalidArgument or DataLoss when its shard is broken.
  absl::StatusOr<StoredTensor> Find(const std::string& name);
  // Whether `name` is listed.
  bool Contains(std::string_view name) const;
  // Every tensor that the file or the index lists, and its file's name.
  const std::map<std::string, std::string, std::less<>>& listed() const { return shard_of_; }
  // The open files by name; a shard is open once a tensor of it has been found.
  const std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>>& files() const {
    return files_;
  }
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
