// Training checkpoints: logical tensors with their global shapes, whoever held them, so that any pipeline or
// data parallel degree can read what any other wrote.
//
//   ROOT/step_00000010/part-00000.safetensors   what one writer held: whole tensors, or runs of their
//   elements
//                      part-00000.json          its size, checksum and contents
//                      manifest.json            written last: every part, where each tensor lies, the small
//                      state
//
// A checkpoint is built in ROOT/step_00000010.incomplete and renamed when nothing is missing. Saving with
// several ranks:
//   rank 0: dir = begin_checkpoint(root, step);      barrier
//   all:    write_part(dir, rank, tensors);          barrier
//   rank 0: finish_checkpoint(dir, read_part_info(dir, 0 ... n-1), ...); retire_checkpoints(root, n)
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint_layout.h"
#include "checkpoint/safetensors.h"

namespace trainer {

// Some elements of the logical tensor `name`, in row-major order; with a stride, some columns of a matrix.
struct PartSlice {
  std::string name;
  std::vector<int64_t> shape;  // of the whole logical tensor
  SliceExtent extent;
};
struct PartTensor {
  PartSlice slice;
  std::span<const float> values;                             // extent.count of them
  std::shared_ptr<const std::vector<float>> copy = nullptr;  // keeps the values, where they lie nowhere else
};

struct PartInfo {
  int writer = 0;
  std::string file;  // name inside the checkpoint
  uint64_t bytes = 0, checksum = 0;
  std::vector<PartSlice> slices;
};

struct CheckpointState {
  int64_t step = 0, consumed_samples = 0;
  // Everything else that training needs to go on. Key "model" holds the model as a Hugging Face config.json.
  Json state;
};

// ROOT/step_00000010.incomplete, new and empty; leftovers of interrupted saves are removed. Throws RunError.
std::filesystem::path begin_checkpoint(const std::filesystem::path& root, int64_t step);
// What the part holds is on disk when this returns. Throws RunError when it cannot be written, when
// `given_up` says so, or when a value is not finite: such a checkpoint must never take the place of a good
// one.
PartInfo write_part(const std::filesystem::path& directory, int writer, std::span<const PartTensor> tensors,
                    const std::stop_token& given_up = {});
// What `write_part` of this writer returned. Throws RunError when that part is not there, or when what its
// file says makes no sense.
PartInfo read_part_info(const std::filesystem::path& directory, int writer);
// Checks that the parts are there and hold every element of every tensor exactly once, writes the manifest,
// and gives the checkpoint its final name, which is returned. An earlier checkpoint of the same step is
// replaced.
std::filesystem::path finish_checkpoint(const std::filesystem::path& directory,
                                        std::span<const PartInfo> parts, const CheckpointState& state);
// Removes an unfinished or retired checkpoint as far as that is possible; never throws.
void abandon_checkpoint(const std::filesystem::path& directory) noexcept;
// Keeps the newest `keep_last` complete checkpoints, and everything newer than the last of them; 0 keeps all.
// The others are taken out of sight, into folders that are returned and only have to be removed: of large
// files that takes a while.
std::vector<std::filesystem::path> retire_checkpoints(const std::filesystem::path& root, int keep_last);

// One complete checkpoint. The constructor checks everything but the data; `verify` checks the data too.
// Every method throws InputError naming the file.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  int64_t step() const { return state_.step; }
  int64_t consumed_samples() const { return state_.consumed_samples; }
  const Json& state() const { return state_.state; }

  std::vector<std::string> names() const;
  // Null: there is no such tensor.
  const std::vector<int64_t>* shape(const std::string& name) const;
  // Elements [begin, begin + values.size()) of `name`, whose shape is not looked at.
  void read(const std::string& name, int64_t begin, std::span<float> values) const;
  // Reads every byte of every `shares`-th part, from part `share` on, and compares checksums.
  void verify(size_t share = 0, size_t shares = 1) const;

 private:
  struct Slice {
    size_t part;
    SliceExtent extent;
    const StoredTensor* stored;
  };
  struct Tensor {
    std::vector<int64_t> shape;
    int64_t count = 0;
    std::vector<Slice> slices;  // hold every element once
  };
  void add_tensor(const std::string& name, const Json& entry);

  std::filesystem::path directory_;
  std::string manifest_;  // its path, for messages
  CheckpointState state_;
  std::vector<uint64_t> checksums_;
  std::vector<SafetensorsFile> parts_;
  std::map<std::string, Tensor> tensors_;
};

// Looks through the checkpoints below `root`, newest first. Those passed over are warned of.
class CheckpointSearch {
 public:
  explicit CheckpointSearch(std::filesystem::path root);
  // The newest not yet looked at that is complete; its data is not read. nullopt: there is none at all.
  // Throws InputError when there are some, but none that can be used.
  std::optional<std::filesystem::path> next();
  // What `next` gave cannot be used.
  void pass_over(const std::string& why);
  // What `next` gave is used: warns of newer ones that were never completed.
  void warn_of_interrupted() const;

 private:
  std::filesystem::path root_;
  std::vector<ListedCheckpoint> left_;  // oldest first
  std::optional<int64_t> step_;         // of what `next` gave
  std::string problem_;                 // of the newest passed over
};

// The newest checkpoint below `root` that is complete and whose checksums are right. Those passed over are
// warned of, by file. nullopt: there is none at all. Throws InputError when there are some, but none that can
// be used.
std::optional<std::filesystem::path> find_latest_checkpoint(const std::filesystem::path& root);

}  // namespace trainer
