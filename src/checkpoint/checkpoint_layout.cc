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

int64_t element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(count, size, &count),
            "a tensor shape is negative or too large");
  return count;
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
