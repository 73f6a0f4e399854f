// The safetensors file format: an 8-byte length, a JSON header, and the tensors' bytes without holes.
// Everything in a header is checked before it is used; nothing is allocated on its word.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/large_file.h"

namespace trainer {

enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64
};

// As files spell it ("F32", "BF16").
const char* name_of(TensorType type);
size_t size_of(TensorType type);  // bytes of one element
// F32, BF16 and F16: what weights are read from and written as.
bool is_weight_type(TensorType type);

struct StoredTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
  int64_t count() const { return static_cast<int64_t>((end - begin) / size_of(type)); }
};

// Reads and checks the header of `path`. Every method throws InputError that names the file, and the tensor.
class SafetensorsFile {
 public:
  static constexpr uint64_t kMaximumHeader = 100'000'000;

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Null when there is none of this name.
  const StoredTensor* find(std::string_view name) const;

  // Elements [begin, begin + values.size()) of `tensor`, in its stored order, converted to fp32. The type
  // must be F32, BF16 or F16.
  void read(const StoredTensor& tensor, int64_t begin, std::span<float> values) const;

 private:
  ReadableFile file_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct TensorDeclaration {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
};

// Writes a file whose tensors are declared up front and then streamed in the declared order; it gets its
// final name in `commit`. The header says `"__metadata__": {"format": "pt"}`, without which transformers
// opens no file. Throws RunError when the file cannot be written.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors);

  // The next values, converted to the type of the tensor they belong to; they must not cross a tensor's end.
  void write(std::span<const float> values);
  // Every declared tensor must be complete.
  void commit();

  uint64_t bytes() const { return file_.written(); }
  // XXH64 of everything written so far.
  uint64_t checksum() const { return hash_.value(); }

 private:
  struct Pending {
    std::string name;
    TensorType type;
    int64_t left;
  };
  void write_bytes(const void* data, size_t bytes);
  void skip_complete();

  LargeFile file_;
  StreamingHash hash_;
  std::vector<Pending> pending_;
  size_t current_ = 0;
  std::vector<uint16_t> converted_;
};

}  // namespace trainer
