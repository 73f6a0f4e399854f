// Writing training checkpoints; reading is in checkpoint_reader.cc.
#include "checkpoint/training_checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_layout.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashedElements = size_t{1} << 18;  // elements looked at, hashed and written at a time

void require_finite(const std::string& name, int64_t begin, std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7F800000u;
  uint32_t bad = 0;
  for (float value : values)
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & kExponent) == kExponent);
  if (!bad) return;
  const auto it = std::find_if(values.begin(), values.end(),
                               [](float v) { return (std::bit_cast<uint32_t>(v) & kExponent) == kExponent; });
  run_error("tensor '{}' holds {} at element {}: the checkpoint is not saved; the last good one stays", name,
            *it, begin + (it - values.begin()));
}

// Of a shape that is our own.
int64_t whole_count(const std::string& name, std::span<const int64_t> shape) {
  const auto count = element_count(shape);
  require(count.has_value(), "tensor '{}': its shape is negative or too large", name);
  return *count;
}

Json to_json(const PartInfo& part) {
  Json slices = Json::array();
  for (const auto& slice : part.slices) {
    const SliceExtent& extent = slice.extent;
    slices.push_back(
        {{"name", slice.name}, {"shape", slice.shape}, {"begin", extent.begin}, {"count", extent.count}});
    if (extent.stride == 0) continue;
    slices.back()["run"] = extent.run;
    slices.back()["stride"] = extent.stride;
  }
  return {{"file", part.file},
          {"bytes", part.bytes},
          {"checksum", hexadecimal(part.checksum)},
          {"slices", slices}};
}

// Tensor name -> {"shape", "slices": [[part, begin, count], ...]}, checked to be whole. Slices with a stride
// are [part, begin, count, run, stride].
Json tensor_table(std::span<const PartInfo> parts) {
  struct Entry {
    const std::vector<int64_t>* shape;
    std::vector<std::pair<size_t, SliceExtent>> slices;  // by part
  };
  std::map<std::string, Entry> tensors;
  for (size_t p = 0; p < parts.size(); ++p)
    for (const auto& slice : parts[p].slices) {
      auto& entry = tensors.try_emplace(slice.name, Entry{&slice.shape, {}}).first->second;
      require(*entry.shape == slice.shape, "tensor '{}' was saved with two shapes", slice.name);
      entry.slices.push_back({p, slice.extent});
    }
  // The members are known to differ, and looking each one up among the others would take quadratic time.
  Json::object_t table;
  table.reserve(tensors.size());
  for (auto& [name, entry] : tensors) {
    std::sort(entry.slices.begin(), entry.slices.end(),
              [](const auto& a, const auto& b) { return a.second.begin < b.second.begin; });
    std::vector<SliceExtent> extents;
    Json slices = Json::array();
    for (const auto& [part, extent] : entry.slices) {
      extents.push_back(extent);
      slices.push_back({part, extent.begin, extent.count});
      if (extent.stride == 0) continue;
      slices.back().push_back(extent.run);
      slices.back().push_back(extent.stride);
    }
    const auto misfit = find_misfit(extents, whole_count(name, *entry.shape));
    require(!misfit, "tensor '{}': element {} was saved {}", name, misfit ? misfit->element : 0,
            misfit && misfit->twice ? "twice" : "by nobody");
    table.push_back({name, Json{{"shape", *entry.shape}, {"slices", std::move(slices)}}});
  }
  return Json(std::move(table));
}

// Puts `from` in the place of `to`, which may exist. Where the file system can, both names change at once.
void put_in_place(const fs::path& from, const fs::path& to) {
  if (fs::exists(to)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(to.parent_path());
      fs::remove_all(from);
      return;
    }
    const fs::path aside = to.string() + kRemovedSuffix;
    fs::remove_all(aside);
    fs::rename(to, aside);
    fs::rename(from, to);
    sync_directory(to.parent_path());
    fs::remove_all(aside);
    return;
  }
  fs::rename(from, to);
  sync_directory(to.parent_path());
}

bool complete(const fs::path& directory) {
  try {
    CheckpointReader reader(directory);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

fs::path begin_checkpoint(const fs::path& root, int64_t step) {
  try {
    fs::create_directories(root);
    for (const auto& entry : list_checkpoints(root, kIncompleteSuffix)) fs::remove_all(entry.path);
    for (const auto& entry : list_checkpoints(root, kRemovedSuffix)) fs::remove_all(entry.path);
    fs::path directory = root / (checkpoint_name(step) + kIncompleteSuffix);
    fs::create_directory(directory);
    return directory;
  } catch (const fs::filesystem_error& e) {
    run_error("cannot begin a checkpoint in {}: {}", root.string(), e.what());
  }
}

PartInfo write_part(const fs::path& directory, int writer, std::span<const PartTensor> tensors,
                    const std::stop_token& given_up) {
  PartInfo part;
  part.writer = writer;
  part.file = part_name(writer) + ".safetensors";
  std::vector<TensorDeclaration> declarations;
  for (const auto& [slice, values, copy] : tensors) {
    const SliceExtent& extent = slice.extent;
    const int64_t whole = whole_count(slice.name, slice.shape);
    require(extent.fits(whole), "tensor '{}': {} elements from {} on, in runs of {} by {}, of {}", slice.name,
            extent.count, extent.begin, extent.run, extent.stride, whole);
    require(extent.count == std::ssize(values), "tensor '{}': {} values for {} elements", slice.name,
            values.size(), extent.count);
    part.slices.push_back(slice);
    declarations.push_back({slice_name(slice.name, extent.begin, extent.count, whole), TensorType::kF32,
                            extent.count == whole ? slice.shape : std::vector<int64_t>{extent.count}});
  }

  SafetensorsWriter file(directory / part.file, declarations);
  for (const auto& [slice, values, copy] : tensors)
    for (size_t done = 0; done < values.size(); done += kHashedElements) {
      const auto piece = values.subspan(done, std::min(kHashedElements, values.size() - done));
      if (given_up.stop_requested())
        run_error("{}: its writing was given up", (directory / part.file).string());
      require_finite(slice.name, slice.extent.begin + static_cast<int64_t>(done), piece);
      file.write(piece);
    }
  file.commit();
  part.bytes = file.bytes();
  part.checksum = file.checksum();
  write_file_atomically(directory / (part_name(writer) + ".json"), to_json(part).dump());
  return part;
}

PartInfo read_part_info(const fs::path& directory, int writer) {
  const std::string path = (directory / (part_name(writer) + ".json")).string();
  try {
    const Json json = parse_json_file(path);
    PartInfo part;
    part.writer = writer;
    part.file = json_string(json, "file", path);
    part.bytes = static_cast<uint64_t>(json_integer(json, "bytes", path));
    part.checksum = parse_hexadecimal(json_string(json, "checksum", path), path);
    for (const Json& member : json.at("slices")) {
      const PartSlice& slice = part.slices.emplace_back(
          PartSlice{json_string(member, "name", path),
                    member.at("shape").get<std::vector<int64_t>>(),
                    {json_integer(member, "begin", path), json_integer(member, "count", path),
                     json_integer(member, "run", path, 0), json_integer(member, "stride", path, 0)}});
      const auto whole = element_count(slice.shape);
      if (!whole || !slice.extent.fits(*whole) ||
          static_cast<uint64_t>(slice.extent.count) > part.bytes / sizeof(float))
        run_error("{}: damaged: its elements of tensor '{}' do not fit", path, slice.name);
    }
    return part;
  } catch (const InputError& e) {
    run_error("the part of writer {} is missing: {}", writer, e.what());
  } catch (const nlohmann::json::exception& e) {
    run_error("{}: damaged: {}", path, e.what());
  }
}

fs::path finish_checkpoint(const fs::path& directory, std::span<const PartInfo> parts,
                           const CheckpointState& state) {
  require(directory.extension() == kIncompleteSuffix, "{} is not an unfinished checkpoint",
          directory.string());
  Json files = Json::array();
  for (const auto& part : parts) {
    std::error_code error;
    const auto size = fs::file_size(directory / part.file, error);
    if (error) run_error("{}: {}", (directory / part.file).string(), error.message());
    if (size != part.bytes)
      run_error("{}: {} bytes were written, {} are there", (directory / part.file).string(), part.bytes,
                size);
    files.push_back({{"file", part.file}, {"bytes", part.bytes}, {"checksum", hexadecimal(part.checksum)}});
  }
  Json manifest = {{"format", kManifestFormat},
                   {"version", kManifestVersion},
                   {"step", state.step},
                   {"consumed_samples", state.consumed_samples},
                   {"state", state.state},
                   {"parts", files},
                   {"tensors", tensor_table(parts)}};
  manifest["checksum"] = hexadecimal(hash_string(manifest.dump()));
  write_file_atomically(directory / kManifestFile, manifest.dump() + "\n");

  fs::path final_name = directory;
  final_name.replace_extension();
  try {
    put_in_place(directory, final_name);
  } catch (const fs::filesystem_error& e) {
    run_error("cannot put {} in place: {}", final_name.string(), e.what());
  }
  return final_name;
}

void abandon_checkpoint(const fs::path& directory) noexcept {
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) log_warning("cannot remove {}: {}", directory.string(), error.message());
}

std::vector<fs::path> retire_checkpoints(const fs::path& root, int keep_last) {
  std::vector<fs::path> retired;
  if (keep_last <= 0) return retired;
  try {
    int kept = 0;
    for (const auto& entry : list_checkpoints(root, "")) {
      if (kept == keep_last) {
        const fs::path aside = entry.path.string() + kRemovedSuffix;
        fs::rename(entry.path, aside);  // at once: a half removed one must not be found
        retired.push_back(aside);
      } else if (complete(entry.path)) {
        ++kept;
      }
    }
  } catch (const fs::filesystem_error& e) {
    run_error("cannot remove old checkpoints: {}", e.what());
  }
  return retired;
}

}  // namespace trainer
