// Tokens of a tokenizer.json that are found in the text as they stand, before any other splitting.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalised text, not in the text as given
};

// Finds tokens in a text: at each place the longest one that starts there, from left to right.
class AddedTokenFinder {
 public:
  struct Part {
    std::string_view text;
    int32_t token;  // -1: `text` is ordinary text
  };

  // `content` must not be empty.
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Cuts `text` into tokens and what lies between them. Special tokens count as text unless `allow_special`.
  std::vector<Part> split(std::string_view text, bool allow_special) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t position) const;

  struct Node {
    std::unordered_map<char, size_t> children;
    size_t token = SIZE_MAX;  // index into tokens_
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};  // bytes that tokens start with
  std::vector<AddedToken> tokens_;
};

}  // namespace trainer
