// Regular expressions of tokenizer files: Oniguruma patterns over UTF-8, matched by PCRE2 with its JIT.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trainer {

// The pattern rewritten so that PCRE2 (UTF, UCP) matches what Oniguruma would: `\s` is the property
// White_Space. What the two read differently (`\w`, `\b`, `\h`, anchors, `{n}+`, sets inside sets, ...) is
// refused: InputError naming `where`, the construct and the pattern.
std::string translate_pattern(std::string_view pattern, const std::string& where);

// A compiled expression; safe for concurrent use.
class RegularExpression {
 public:
  // Throws InputError naming `where` when the pattern is wrong or not supported.
  RegularExpression(const std::string& pattern, const std::string& where);
  ~RegularExpression();
  RegularExpression(RegularExpression&& other) noexcept;
  RegularExpression& operator=(RegularExpression&& other) noexcept;

  // Calls `found(begin, end)` for each non-empty match, from left to right. `text` must be well-formed UTF-8.
  template <class Found>
  void for_each_match(std::string_view text, Found&& found) const {
    size_t begin = 0, end = 0;
    for (size_t position = 0; position <= text.size(); position = end) {
      if (!next_match(text, position, begin, end)) return;
      if (end > begin) found(begin, end);
      if (end == begin && !step(text, end)) return;
    }
  }

 private:
  struct Code;
  bool next_match(std::string_view text, size_t position, size_t& begin, size_t& end) const;
  static bool step(std::string_view text, size_t& position);  // over one character; false at the end

  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace trainer
