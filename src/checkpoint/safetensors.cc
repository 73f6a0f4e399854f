#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/half.h"
#include "base/json.h"
#include "ops/bf16.h"

namespace trainer {
namespace {

constexpr size_t kChunkElements =
    size_t{1} << 18;  // elements converted, hashed and written at a time: they stay in cache

struct TypeEntry {
  const char* name;
  size_t size;
};
constexpr std::array<TypeEntry, 17> kTypes{{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"F8_E5M2", 1},
                                            {"F8_E4M3", 1},
                                            {"F8_E8M0", 1},
                                            {"I16", 2},
                                            {"U16", 2},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I32", 4},
                                            {"U32", 4},
                                            {"F32", 4},
                                            {"I64", 8},
                                            {"U64", 8},
                                            {"F64", 8},
                                            {"C64", 8}}};

std::optional<TensorType> type_of(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (name == kTypes[i].name) return static_cast<TensorType>(i);
  return std::nullopt;
}

// A JSON number that is a non-negative integer below 2^63; -1, 2.0 and 1e3 are none.
std::optional<uint64_t> size_value(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return number;
}

// `where` is the file and tensor. Offsets stay relative to the data; whether they lie in it is the caller's
// check.
StoredTensor parse_tensor(const std::string& name, const Json& entry, const std::string& where) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object()) input_error("{}: its header entry is not an object", where);
  const auto type = type_of(json_string(entry, "dtype", where));
  if (!type) input_error("{}: unknown dtype '{}'", where, json_string(entry, "dtype", where));
  tensor.type = *type;

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) input_error("{}: 'shape' is not a list", where);
  uint64_t bytes = size_of(*type);
  for (const Json& dimension : *shape) {
    const auto size = size_value(dimension);
    if (!size) input_error("{}: shape {} holds something that is no size", where, shape->dump());
    if (__builtin_mul_overflow(bytes, *size, &bytes))
      input_error("{}: shape {} is too large", where, shape->dump());
    tensor.shape.push_back(static_cast<int64_t>(*size));
  }

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2)
    input_error("{}: 'data_offsets' is not a pair", where);
  const auto begin = size_value((*offsets)[0]), end = size_value((*offsets)[1]);
  if (!begin || !end || *begin > *end) input_error("{}: bad data_offsets {}", where, offsets->dump());
  if (*end - *begin != bytes)
    input_error("{}: shape {} of {} takes {} bytes, data_offsets {} hold {}", where, shape->dump(),
                name_of(*type), bytes, offsets->dump(), *end - *begin);
  tensor.begin = *begin;
  tensor.end = *end;
  return tensor;
}

template <float (*convert)(uint16_t)>
void read_16_bit(const ReadableFile& file, uint64_t offset, std::span<float> values) {
  std::vector<uint16_t> raw(std::min(values.size(), kChunkElements));
  for (size_t done = 0; done < values.size();) {
    const size_t n = std::min(kChunkElements, values.size() - done);
    file.read(offset + 2 * done, raw.data(), 2 * n);
    for (size_t i = 0; i < n; ++i) values[done + i] = convert(raw[i]);
    done += n;
  }
}

}  // namespace

const char* name_of(TensorType type) { return kTypes[static_cast<size_t>(type)].name; }
size_t size_of(TensorType type) { return kTypes[static_cast<size_t>(type)].size; }
bool is_weight_type(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kBF16 || type == TensorType::kF16;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  uint64_t header_size = 0;
  if (file_.size() < sizeof header_size)
    input_error("{}: {} bytes are too few for a safetensors file", name, file_.size());
  file_.read(0, &header_size, sizeof header_size);
  if (header_size > kMaximumHeader)
    input_error("{}: not a safetensors file: it claims a header of {} bytes (at most {} are allowed)", name,
                header_size, kMaximumHeader);
  const uint64_t data_begin = sizeof header_size + header_size;
  if (data_begin > file_.size())
    input_error("{}: cut short: its header is {} bytes long, the file {}", name, header_size, file_.size());
  std::string text(header_size, '\0');
  file_.read(sizeof header_size, text.data(), text.size());
  if (!text.starts_with('{'))
    input_error("{}: not a safetensors file: no JSON object where its header should be", name);
  const Json header = parse_json(text, name + " (header)");

  std::vector<StoredTensor*> order;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      if (!entry.is_object()) input_error("{}: '__metadata__' is not an object", name);
      for (const auto& [k, v] : entry.items()) metadata_[k] = json_string(entry, k, name + ": __metadata__");
      continue;
    }
    auto& tensor = tensors_[key] = parse_tensor(key, entry, fmt::format("{}: tensor '{}'", name, key));
    order.push_back(&tensor);
  }

  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  const uint64_t data_size = file_.size() - data_begin;
  uint64_t expected = 0;
  for (StoredTensor* tensor : order) {
    if (tensor->end > data_size)
      input_error(
          "{}: tensor '{}' ends at byte {} of the data, the file holds {}; it is cut short or damaged", name,
          tensor->name, tensor->end, data_size);
    if (tensor->begin != expected)
      input_error("{}: tensor '{}' begins at byte {} of the data, but {}", name, tensor->name, tensor->begin,
                  tensor->begin < expected
                      ? fmt::format("the one before it ends at {} (they overlap)", expected)
                      : fmt::format("bytes from {} belong to none", expected));
    expected = tensor->end;
    tensor->begin += data_begin;
    tensor->end += data_begin;
  }
  if (expected != data_size)
    input_error("{}: {} bytes at its end belong to no tensor", name, data_size - expected);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void SafetensorsFile::read(const StoredTensor& tensor, int64_t begin, std::span<float> values) const {
  require(begin >= 0 && begin + static_cast<int64_t>(values.size()) <= tensor.count(),
          "elements {} to {} of tensor '{}', which has {}", begin,
          begin + static_cast<int64_t>(values.size()), tensor.name, tensor.count());
  const uint64_t offset = tensor.begin + static_cast<uint64_t>(begin) * size_of(tensor.type);
  switch (tensor.type) {
    case TensorType::kF32:
      return file_.read(offset, values.data(), values.size_bytes());
    case TensorType::kBF16:
      return read_16_bit<bf16_to_float>(file_, offset, values);
    case TensorType::kF16:
      return read_16_bit<half_to_float>(file_, offset, values);
    default:
      input_error(
          "{}: tensor '{}' is {}; weights are read from F32, BF16 and F16 only (quantized models must be "
          "dequantized first)",
          path().string(), tensor.name, name_of(tensor.type));
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorDeclaration>& tensors)
    : file_(path) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    require(is_weight_type(tensor.type), "tensor '{}': {} cannot be written", tensor.name,
            name_of(tensor.type));
    require(!header.contains(tensor.name), "tensor '{}' is declared twice", tensor.name);
    int64_t count = 1;
    for (int64_t size : tensor.shape) count *= size;
    const uint64_t end = offset + static_cast<uint64_t>(count) * size_of(tensor.type);
    header[tensor.name] = {
        {"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    pending_.push_back({tensor.name, tensor.type, count});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data is aligned for readers that map the file
  const uint64_t size = text.size();
  write_bytes(&size, sizeof size);
  write_bytes(text.data(), text.size());
  skip_complete();
}

void SafetensorsWriter::write(std::span<const float> values) {
  if (values.empty()) return;
  const auto count = static_cast<int64_t>(values.size());
  require(current_ < pending_.size() && pending_[current_].left >= count, "{} values more than were declared",
          count);
  Pending& tensor = pending_[current_];
  for (size_t done = 0; done < values.size();) {
    const auto piece = values.subspan(done, std::min(kChunkElements, values.size() - done));
    if (tensor.type == TensorType::kF32) {
      write_bytes(piece.data(), piece.size_bytes());
    } else {
      converted_.resize(piece.size());
      if (tensor.type == TensorType::kBF16)
        std::transform(piece.begin(), piece.end(), converted_.begin(),
                       [](float v) { return float_to_bf16(v); });
      else
        std::transform(piece.begin(), piece.end(), converted_.begin(),
                       [](float v) { return float_to_half(v); });
      write_bytes(converted_.data(), 2 * converted_.size());
    }
    done += piece.size();
  }
  tensor.left -= count;
  skip_complete();
}

void SafetensorsWriter::commit() {
  require(current_ == pending_.size(), "tensor '{}' was not written to its end",
          current_ < pending_.size() ? pending_[current_].name : "");
  file_.commit();
}

void SafetensorsWriter::write_bytes(const void* data, size_t bytes) {
  hash_.add(data, bytes);
  file_.write(data, bytes);
}

void SafetensorsWriter::skip_complete() {
  while (current_ < pending_.size() && pending_[current_].left == 0) ++current_;
}

}  // namespace trainer
