// What a tokenizer.json does to text before its merges: cutting it into pieces that merges never cross.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "data/regular_expression.h"

namespace trainer {

class PreTokenizer {
 public:
  // Reads the `pre_tokenizer` value of `where` (a file): ByteLevel, Split (Regex or String, Isolated, not
  // inverted), Digits, or a Sequence of them that ends in ByteLevel. Throws InputError naming anything else.
  PreTokenizer(const Json& description, const std::string& where);

  // The pieces of `text` (well-formed UTF-8), in order. Joined they are `text`, except for the spaces that
  // `add_prefix_space` puts before a piece; `continues` holds back the one before the first. They point into
  // `text` and into `storage`, which is added to.
  std::vector<std::string_view> split(std::string_view text, bool continues,
                                      std::deque<std::string>& storage) const;

  // The first piece of a text gets a space in front.
  bool adds_space_prefix() const { return adds_space_prefix_; }

 private:
  struct SplitByExpression {
    RegularExpression expression;
  };
  struct SplitByText {
    std::string text;
  };
  struct SplitDigits {
    bool individual;
  };
  struct PrefixSpace {};  // of ByteLevel(add_prefix_space)
  using Step = std::variant<SplitByExpression, SplitByText, SplitDigits, PrefixSpace>;

  void add_step(const Json& description, const std::string& where, const std::string& path, bool last);

  std::vector<Step> steps_;
  bool ends_in_byte_level_ = false;
  bool adds_space_prefix_ = false;
};

}  // namespace trainer
