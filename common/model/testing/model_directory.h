// A checkpoint's directory that a test changes file by file.
#ifndef COMMON_MODEL_TESTING_MODEL_DIRECTORY_H_
#define COMMON_MODEL_TESTING_MODEL_DIRECTORY_H_

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"

namespace baton::model_testing {

using Json = nlohmann::ordered_json;

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A model's directory, for a test to break.
struct ModelDirectory {
  std::string path;

  std::string File(const std::string& name) const { return path + "/" + name; }

  void Remove(const char* name) const { std::filesystem::remove(File(name)); }

  void EditJson(const char* name, const std::function<void(Json&)>& edit) const {
    Json json = Json::parse(ReadFile(File(name)));
    edit(json);
    WriteFile(File(name), json.dump());
  }
  void EditConfig(const std::function<void(Json&)>& edit) const { EditJson("config.json", edit); }

  // Rewrites the header of model.safetensors; the data stays.
  void EditHeader(const std::function<void(Json&)>& edit) const {
    const std::string file = ReadFile(File("model.safetensors"));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    Json header = Json::parse(file.substr(sizeof(length), length));
    edit(header);
    WriteHeader(header.dump(), file.substr(sizeof(length) + length));
  }
  // Adds an empty tensor to model.safetensors.
  void AddTensor(const std::string& name) const {
    EditHeader([&name](Json& header) {
      header[name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    });
  }
  void WriteHeader(const std::string& header, const std::string& data = "") const {
    const uint64_t length = header.size();
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    WriteFile(File("model.safetensors"), bytes + header + data);
  }
  void WriteLength(uint64_t length) const {
    std::string file = ReadFile(File("model.safetensors"));
    std::memcpy(file.data(), &length, sizeof(length));
    WriteFile(File("model.safetensors"), file);
  }
};

}  // namespace baton::model_testing

#endif  // COMMON_MODEL_TESTING_MODEL_DIRECTORY_H_
