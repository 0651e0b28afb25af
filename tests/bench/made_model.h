// A random model for a benchmark, and what it takes in memory.
#ifndef TESTS_BENCH_MADE_MODEL_H_
#define TESTS_BENCH_MADE_MODEL_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/make_model.h"

namespace baton {

// A directory that goes with its owner. One at a time in a process.
class MadeModel {
 public:
  explicit MadeModel(const RandomModelOptions& shape)
      : path_(std::filesystem::temp_directory_path() / absl::StrCat("baton_bench_", getpid())) {
    const absl::Status made = MakeRandomModel(path_.string(), shape);
    BATON_CHECK(made.ok()) << made;
  }
  MadeModel(const MadeModel&) = delete;
  MadeModel& operator=(const MadeModel&) = delete;
  ~MadeModel() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  double file_bytes() const {
    return static_cast<double>(std::filesystem::file_size(path_ / "model.safetensors"));
  }

 private:
  const std::filesystem::path path_;
};

inline int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace baton

#endif  // TESTS_BENCH_MADE_MODEL_H_
