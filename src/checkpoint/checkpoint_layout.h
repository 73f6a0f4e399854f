// Names and small encodings that the writer and the reader of training checkpoints share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kManifestFormat[] = "trainer-checkpoint";
inline constexpr int64_t kManifestVersion = 1;
inline constexpr char kIncompleteSuffix[] = ".incomplete";
inline constexpr char kRemovedSuffix[] = ".removed";

std::string checkpoint_name(int64_t step);  // "step_00000010"
std::string part_name(int writer);          // "part-00000", without its ending

// The name a run of elements has inside its part: the tensor's own when it is the whole tensor.
std::string slice_name(const std::string& tensor, int64_t begin, int64_t count, int64_t whole);
// nullopt: a size is negative, or there are more than a number can hold.
std::optional<int64_t> element_count(std::span<const int64_t> shape);

// `count` elements of a tensor, in runs of `run` that begin `stride` apart, the first at `begin`. No stride:
// one run.
struct SliceExtent {
  int64_t begin = 0, count = 0, run = 0, stride = 0;
  int64_t length() const { return stride > 0 ? run : count; }  // of each run
  int64_t runs() const { return count > 0 ? count / length() : 0; }
  int64_t end() const { return count > 0 ? begin + (runs() - 1) * stride + length() : begin; }
  // Whether the numbers make sense for a tensor of `whole` elements.
  bool fits(int64_t whole) const;
};

// The first of `whole` elements that the slices do not hold exactly once; nullopt: they hold all.
struct Misfit {
  int64_t element;
  bool twice;
};
std::optional<Misfit> find_misfit(std::span<const SliceExtent> slices, int64_t whole);

std::string hexadecimal(uint64_t value);  // 16 digits
// Throws InputError headed by `where`.
uint64_t parse_hexadecimal(const std::string& text, const std::string& where);

struct ListedCheckpoint {
  int64_t step;
  std::filesystem::path path;
};
// Directories of `root` named step_NUMBER followed by `suffix`, newest first; empty when `root` is not there.
std::vector<ListedCheckpoint> list_checkpoints(const std::filesystem::path& root, const std::string& suffix);

}  // namespace trainer
