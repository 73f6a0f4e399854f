#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_layout.h"
#include "checkpoint/training_checkpoint.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kVerifiedAtOnce = size_t{1} << 20;  // bytes; they stay in cache
constexpr uint64_t kReadAhead = uint64_t{16} << 20;

const Json& member(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end()) input_error("{}: key '{}' is missing", where, key);
  return *it;
}

// The manifest without its own checksum, which is compared.
Json read_manifest(const std::string& path) {
  Json manifest = parse_json_file(path);
  if (!manifest.is_object() || json_string(manifest, "format", path, "") != kManifestFormat)
    input_error("{}: not the manifest of a training checkpoint", path);
  const int64_t version = json_integer(manifest, "version", path);
  if (version != kManifestVersion)
    input_error("{}: version {}, this program reads version {}", path, version, kManifestVersion);
  const uint64_t expected = parse_hexadecimal(json_string(manifest, "checksum", path), path);
  manifest.erase("checksum");
  if (hash_string(manifest.dump()) != expected) input_error("{}: damaged: its checksum is wrong", path);
  return manifest;
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory)
    : directory_(directory), manifest_((directory / kManifestFile).string()) {
  const Json manifest = read_manifest(manifest_);
  state_.step = json_integer(manifest, "step", manifest_);
  state_.consumed_samples = json_integer(manifest, "consumed_samples", manifest_);
  state_.state = member(manifest, "state", manifest_);
  for (const Json& part : member(manifest, "parts", manifest_)) {
    const fs::path path = directory_ / json_string(part, "file", manifest_);
    checksums_.push_back(parse_hexadecimal(json_string(part, "checksum", manifest_), manifest_));
    const auto expected = static_cast<uint64_t>(json_integer(part, "bytes", manifest_));
    std::error_code error;
    const uint64_t size = fs::file_size(path, error);
    if (error) input_error("{}: {}", path.string(), error.message());
    if (size != expected)
      input_error("{}: {} bytes, {} were written; it is cut short or damaged", path.string(), size, expected);
    parts_.emplace_back(path);
  }
  for (const auto& [name, entry] : member(manifest, "tensors", manifest_).items()) add_tensor(name, entry);
}

void CheckpointReader::add_tensor(const std::string& name, const Json& entry) {
  Tensor tensor;
  try {
    entry.at("shape").get_to(tensor.shape);
    const auto count = element_count(tensor.shape);
    if (!count) input_error("{}: tensor '{}': its shape is negative or too large", manifest_, name);
    tensor.count = *count;
    for (const Json& slice : entry.at("slices")) {
      const auto part = slice.at(0).get<size_t>();
      SliceExtent extent{slice.at(1).get<int64_t>(), slice.at(2).get<int64_t>()};
      if (slice.size() > 3) {
        extent.run = slice.at(3).get<int64_t>();
        extent.stride = slice.at(4).get<int64_t>();
      }
      tensor.slices.push_back({part, extent, nullptr});
    }
  } catch (const nlohmann::json::exception& e) {
    input_error("{}: tensor '{}': {}", manifest_, name, e.what());
  }
  std::vector<SliceExtent> extents;
  for (Slice& slice : tensor.slices) {
    const SliceExtent& extent = slice.extent;
    if (slice.part >= parts_.size() || !extent.fits(tensor.count))
      input_error("{}: tensor '{}': its parts do not fit together", manifest_, name);
    const SafetensorsFile& file = parts_[slice.part];
    slice.stored = file.find(slice_name(name, extent.begin, extent.count, tensor.count));
    if (!slice.stored || slice.stored->count() != extent.count || slice.stored->type != TensorType::kF32)
      input_error("{}: does not hold elements {} to {} of tensor '{}'", file.path().string(), extent.begin,
                  extent.end(), name);
    extents.push_back(extent);
  }
  if (const auto misfit = find_misfit(extents, tensor.count))
    input_error("{}: tensor '{}': element {} is {}", manifest_, name, misfit->element,
                misfit->twice ? "there twice" : "missing");
  tensors_.emplace(name, std::move(tensor));
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const std::vector<int64_t>* CheckpointReader::shape(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second.shape;
}

void CheckpointReader::read(const std::string& name, int64_t begin, std::span<float> values) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) input_error("{}: holds no tensor '{}'", manifest_, name);
  const Tensor& tensor = it->second;
  const int64_t end = begin + static_cast<int64_t>(values.size());
  if (begin < 0 || end > tensor.count)
    input_error("{}: tensor '{}' has {} elements, {} to {} are wanted", manifest_, name, tensor.count, begin,
                end);
  for (const Slice& slice : tensor.slices) {
    const SliceExtent& extent = slice.extent;
    if (extent.count == 0 || extent.begin >= end || extent.end() <= begin) continue;
    // The first run that ends after `begin`.
    int64_t run = 0;
    if (extent.stride > 0 && begin >= extent.begin + extent.run)
      run = (begin - extent.begin - extent.run) / extent.stride + 1;
    for (; run < extent.runs(); ++run) {
      const int64_t first = extent.begin + run * extent.stride;
      if (first >= end) break;
      const int64_t from = std::max(begin, first), to = std::min(end, first + extent.length());
      if (from >= to) continue;
      parts_[slice.part].read(
          *slice.stored, run * extent.length() + from - first,
          values.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    }
  }
}

void CheckpointReader::verify(size_t share, size_t shares) const {
  std::vector<std::byte> buffer(kVerifiedAtOnce);
  for (size_t p = share; p < parts_.size(); p += shares) {
    const ReadableFile file(parts_[p].path());
    StreamingHash hash;
    for (uint64_t offset = 0; offset < file.size();) {
      if (offset % kReadAhead == 0) file.expect(offset, 2 * kReadAhead);
      const size_t n = std::min<uint64_t>(buffer.size(), file.size() - offset);
      file.read(offset, buffer.data(), n);
      hash.add(buffer.data(), n);
      offset += n;
    }
    if (hash.value() != checksums_[p])
      input_error("{}: damaged: its checksum is {}, {} was written", parts_[p].path().string(),
                  hexadecimal(hash.value()), hexadecimal(checksums_[p]));
  }
}

CheckpointSearch::CheckpointSearch(fs::path root)
    : root_(std::move(root)), left_(list_checkpoints(root_, "")) {
  std::reverse(left_.begin(), left_.end());
}

std::optional<fs::path> CheckpointSearch::next() {
  while (!left_.empty()) {
    const ListedCheckpoint entry = left_.back();
    left_.pop_back();
    step_ = entry.step;
    try {
      CheckpointReader reader(entry.path);
      return entry.path;
    } catch (const InputError& e) {
      pass_over(e.what());
    }
  }
  step_.reset();
  warn_of_interrupted();
  if (!problem_.empty())
    input_error("{}: no checkpoint can be used; the newest: {}", root_.string(), problem_);
  return std::nullopt;
}

void CheckpointSearch::pass_over(const std::string& why) {
  log_warning("checkpoint of step {} is passed over: {}", *step_, why);
  if (problem_.empty()) problem_ = why;
}

void CheckpointSearch::warn_of_interrupted() const {
  for (const auto& entry : list_checkpoints(root_, kIncompleteSuffix))
    if (!step_ || entry.step > *step_)
      log_warning("{}: left by a save that was interrupted, not used", entry.path.string());
}

std::optional<fs::path> find_latest_checkpoint(const fs::path& root) {
  CheckpointSearch search(root);
  while (const auto found = search.next()) {
    try {
      CheckpointReader(*found).verify();
      search.warn_of_interrupted();
      return found;
    } catch (const InputError& e) {
      search.pass_over(e.what());
    }
  }
  return std::nullopt;
}

}  // namespace trainer
