// Small datasets on disk for tests, and a folder that goes away with its object.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace trainer::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "dataset-XXXXXX").string();
    if (!::mkdtemp(name.data())) run_error("cannot make a folder {}", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

inline std::string to_hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

inline void put_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An index made by hand, for what the writer does not write. Documents are the sequences unless told
// otherwise.
inline std::string index_bytes(TokenType type, const std::vector<int32_t>& lengths,
                               std::vector<int64_t> documents = {}) {
  std::string bytes("MMIDIDX\0", 9);
  bytes.resize(9);
  if (documents.empty())
    for (size_t i = 0; i <= lengths.size(); ++i) documents.push_back(static_cast<int64_t>(i));
  append(bytes, uint64_t{1});
  append(bytes, type);
  append(bytes, static_cast<uint64_t>(lengths.size()));
  append(bytes, static_cast<uint64_t>(documents.size()));
  for (const int32_t length : lengths) append(bytes, length);
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    append(bytes, offset);
    offset += length * token_bytes(type);
  }
  for (const int64_t document : documents) append(bytes, document);
  return bytes;
}

// A dataset of sequences of these lengths that holds the tokens first, first + 1, …
inline std::shared_ptr<const IndexedDataset> counting_dataset(const TemporaryFolder& folder,
                                                              const std::string& name,
                                                              const std::vector<int32_t>& lengths,
                                                              int32_t first = 0) {
  put_file(folder / (name + ".idx"), index_bytes(TokenType::kI32, lengths));
  std::string data;
  for (const int32_t length : lengths)
    for (int32_t i = 0; i < length; ++i) append(data, first++);
  put_file(folder / (name + ".bin"), data);
  return std::make_shared<const IndexedDataset>(folder / name);
}

// The message of the InputError that `body` must throw.
template <class Body>
std::string input_error_of(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no InputError";
  return "";
}

}  // namespace trainer::testing
