#include "checkpoint/checkpoint_layout.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace trainer {
namespace {

template <class T>
bool parse_all(std::string_view text, T& value, int base) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step_{:08}", step); }
std::string part_name(int writer) { return fmt::format("part-{:05}", writer); }

std::string slice_name(const std::string& tensor, int64_t begin, int64_t count, int64_t whole) {
  return count == whole ? tensor : fmt::format("{}@{}", tensor, begin);
}

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return std::nullopt;
  return count;
}

bool SliceExtent::fits(int64_t whole) const {
  if (begin < 0 || count < 0 || begin > whole || count > whole - begin || stride < 0) return false;
  if (stride == 0) return true;
  if (run <= 0 || run > stride || count == 0 || count % run != 0) return false;
  const int64_t last = count / run - 1,
                room = whole - begin - run;  // runs after the first, elements for them
  return room >= 0 && last <= room / stride;
}

std::optional<Misfit> find_misfit(std::span<const SliceExtent> slices, int64_t whole) {
  std::vector<std::pair<int64_t, int64_t>> runs;  // begin, end
  for (const SliceExtent& s : slices)
    for (int64_t r = 0; r < s.runs(); ++r)
      runs.emplace_back(s.begin + r * s.stride, s.begin + r * s.stride + s.length());
  std::sort(runs.begin(), runs.end());
  int64_t expected = 0;
  for (const auto& [begin, end] : runs) {
    if (begin != expected) return Misfit{std::min(begin, expected), begin < expected};
    expected = end;
  }
  if (expected != whole) return Misfit{expected, false};
  return std::nullopt;
}

std::string hexadecimal(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t parse_hexadecimal(const std::string& text, const std::string& where) {
  uint64_t value = 0;
  if (text.size() != 16 || !parse_all(text, value, 16))
    input_error("{}: '{}' is not a checksum", where, text);
  return value;
}

std::vector<ListedCheckpoint> list_checkpoints(const std::filesystem::path& root, const std::string& suffix) {
  constexpr std::string_view kPrefix = "step_";
  std::vector<ListedCheckpoint> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix) || !entry.is_directory()) continue;
    const auto digits =
        std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
    int64_t step = 0;
    if (parse_all(digits, step, 10) && checkpoint_name(step) + suffix == name)
      found.push_back({step, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

}  // namespace trainer
