#include "common/model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxRank = 8;

struct DTypeRow {
  const char* name;
  size_t bytes;
};
// In the order of DType.
constexpr DTypeRow kDTypes[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2},     {"F64", 8},
                                {"I64", 8}, {"I32", 4},  {"I16", 2},     {"I8", 1},
                                {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

std::optional<DType> DTypeNamed(std::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// The data section of a file, as its header's offsets count.
struct DataSection {
  uint64_t offset;
  uint64_t byte_count;
};

// Reads one header entry {"dtype", "shape", "data_offsets"}.
absl::StatusOr<StoredTensor> ParseTensor(const Json& entry, const DataSection& data) {
  if (!entry.is_object()) return absl::InvalidArgumentError("must be an object");
  const auto dtype_name = entry.find("dtype");
  if (dtype_name == entry.end() || !dtype_name->is_string()) {
    return absl::InvalidArgumentError("has no \"dtype\"");
  }
  const auto dtype = DTypeNamed(dtype_name->get_ref<const std::string&>());
  if (!dtype) return absl::UnimplementedError(absl::StrCat("has dtype ", dtype_name->dump()));

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array() || shape->size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("must have a \"shape\" of at most ", kMaxRank, " sizes"));
  }
  StoredTensor tensor;
  tensor.dtype = *dtype;
  int64_t byte_count = static_cast<int64_t>(DTypeBytes(*dtype));
  for (const Json& size : *shape) {
    if (!size.is_number_unsigned()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has the size ", size.dump(), " in its \"shape\""));
    }
    if (size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(byte_count, size.get<int64_t>(), &byte_count)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a \"shape\" whose byte size overflows: ", shape->dump()));
    }
    tensor.shape.push_back(size.get<int64_t>());
  }

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("must have \"data_offsets\" [begin, end]");
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.byte_count) {
    return absl::InvalidArgumentError(absl::StrCat("has \"data_offsets\" ", offsets->dump(),
                                                   " outside the file's ", data.byte_count,
                                                   " bytes of data"));
  }
  if (end - begin != static_cast<uint64_t>(byte_count)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", end - begin, " bytes, but its shape ", shape->dump(), " of ",
                     kDTypes[static_cast<size_t>(*dtype)].name, " takes ", byte_count));
  }
  tensor.offset = data.offset + begin;
  tensor.byte_count = end - begin;
  return tensor;
}

absl::Status RefuseOverlaps(const std::map<std::string, StoredTensor, std::less<>>& tensors) {
  std::vector<std::pair<uint64_t, const std::string*>> starts;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.byte_count != 0) starts.emplace_back(tensor.offset, &name);
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i) {
    const StoredTensor& previous = tensors.find(*starts[i - 1].second)->second;
    if (previous.offset + previous.byte_count > starts[i].first) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors ", *starts[i - 1].second, " and ", *starts[i].second, " overlap"));
    }
  }
  return absl::OkStatus();
}

// A shard is a plain file name: an index must not reach outside its directory.
bool SafeShardName(std::string_view name) {
  const bool plain = name.find('/') == name.npos && name.find('\0') == name.npos;
  return plain && name.ends_with(".safetensors") && name.size() < 256 && name[0] != '.';
}

}  // namespace

const char* DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
size_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

int64_t StoredTensor::ElementCount() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

absl::Status StoredTensor::Read(size_t first_byte, std::span<std::byte> out) const {
  BATON_CHECK(first_byte <= byte_count && out.size() <= byte_count - first_byte)
      << out.size() << " bytes from " << first_byte << " of a tensor of " << byte_count;
  return file->ReadAt(offset + first_byte, out);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path, fd));
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a safetensors file; it has ", info.st_size, " bytes"));
  }
  BATON_RETURN_IF_ERROR(Annotate(file->ParseHeader(static_cast<size_t>(info.st_size)), path));
  return file;
}

SafetensorsFile::~SafetensorsFile() { close(fd_); }

absl::Status SafetensorsFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  BATON_RETURN_IF_ERROR(Failpoint("model.read"));
  while (!out.empty()) {
    const ssize_t got = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::DataLossError(absl::StrCat(path_, ": can't be read: ", std::strerror(errno)));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": ends at byte ", offset, ", ", out.size(),
          " bytes before what its header promises; it was cut short while it was read"));
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ParseHeader(size_t file_bytes) {
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > kMaxHeaderBytes || length > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header of ", length, " bytes does not fit the file of ", file_bytes, " bytes"));
  }
  std::string text(length, '\0');
  BATON_RETURN_IF_ERROR(ReadAt(kLengthBytes, std::as_writable_bytes(std::span(text))));
  BATON_ASSIGN_OR_RETURN(const Json header, ParseJson(text, "header"));
  if (!header.is_object()) return absl::InvalidArgumentError("header must be a JSON object");
  const DataSection data{kLengthBytes + length, file_bytes - kLengthBytes - length};
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<StoredTensor> tensor = ParseTensor(entry, data);
    if (!tensor.ok()) {
      return absl::Status(tensor.status().code(),
                          absl::StrCat("tensor ", name, " ", tensor.status().message()));
    }
    tensor->file = this;
    tensors_.emplace(name, *std::move(tensor));
  }
  return RefuseOverlaps(tensors_);
}

absl::StatusOr<StoredTensor> SafetensorsFile::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": has no tensor ", name));
  }
  return it->second;
}

absl::StatusOr<WeightReader> WeightReader::Open(const std::string& model_path) {
  WeightReader reader;
  reader.model_path_ = model_path;
  const std::string single = absl::StrCat(model_path, "/model.safetensors");
  const std::string index_path = absl::StrCat(single, ".index.json");
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    BATON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(single));
    for (const auto& [name, tensor] : file->tensors()) {
      reader.shard_of_.emplace(name, "model.safetensors");
    }
    reader.files_.emplace("model.safetensors", std::move(file));
    return reader;
  }
  absl::StatusOr<std::string> text = ReadTextFile(index_path, kMaxIndexBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        model_path, ": has neither model.safetensors nor model.safetensors.index.json"));
  }
  BATON_RETURN_IF_ERROR(text.status());
  BATON_ASSIGN_OR_RETURN(const Json index, ParseJson(*text, index_path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": \"weight_map\" is missing"));
  }
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !SafeShardName(shard.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": \"weight_map\" sends ", name, " to ", shard.dump(),
                       ", which is not the name of a .safetensors file beside it"));
    }
    reader.shard_of_.emplace(name, shard.get<std::string>());
  }
  return reader;
}

absl::StatusOr<StoredTensor> WeightReader::Find(const std::string& name) {
  const auto shard = shard_of_.find(name);
  if (shard == shard_of_.end()) {
    return absl::NotFoundError(absl::StrCat(model_path_, ": has no tensor ", name));
  }
  auto& file = files_[shard->second];
  if (file == nullptr) {
    BATON_ASSIGN_OR_RETURN(file,
                           SafetensorsFile::Open(absl::StrCat(model_path_, "/", shard->second)));
  }
  return file->Find(name);
}

bool WeightReader::Contains(std::string_view name) const {
  return shard_of_.find(name) != shard_of_.end();
}

int WeightReader::open_files() const {
  return static_cast<int>(std::count_if(files_.begin(), files_.end(),
                                        [](const auto& file) { return file.second != nullptr; }));
}

}  // namespace baton
