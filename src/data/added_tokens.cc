#include "data/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "data/utf8.h"

namespace trainer {
namespace {

// A token between `begin` and `end` stands alone as a word.
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t length = 0;
  if (begin > 0 && is_word_character(decode_utf8(text, begin - length_before(text, begin), length)))
    return false;
  return end == text.size() || !is_word_character(decode_utf8(text, end, length));
}

size_t white_space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    size_t length = length_before(text, end);
    if (!is_white_space(decode_utf8(text, end - length, length))) break;
    end -= length;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t begin) {
  size_t length = 0;
  while (begin < text.size() && is_white_space(decode_utf8(text, begin, length))) begin += length;
  return begin;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  require(!token.content.empty(), "added token {} without content", token.id);
  starts_[static_cast<uint8_t>(token.content[0])] = true;
  size_t node = 0;
  for (const char c : token.content) {
    const auto [child, inserted] = nodes_[node].children.try_emplace(c, nodes_.size());
    node = child->second;  // before the vector may move
    if (inserted) nodes_.emplace_back();
  }
  nodes_[node].token = tokens_.size();
  tokens_.push_back(token);
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t position) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    const auto child = nodes_[node].children.find(text[i]);
    if (child == nodes_[node].children.end()) break;
    node = child->second;
    if (nodes_[node].token != SIZE_MAX) longest = &tokens_[nodes_[node].token];
  }
  return longest;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text, bool allow_special) const {
  std::vector<Part> parts;
  size_t done = 0;  // all before it is in `parts`
  for (size_t position = 0; position < text.size() && !tokens_.empty();) {
    const AddedToken* token =
        starts_[static_cast<uint8_t>(text[position])] ? longest_at(text, position) : nullptr;
    if (!token) {
      ++position;
      continue;
    }
    size_t begin = position, end = begin + token->content.size();
    position = end;  // what was found is not searched again, even when it does not count
    if (token->special && !allow_special) continue;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(done, white_space_begin(text, begin));
    if (token->rstrip) position = end = white_space_end(text, end);
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace trainer
