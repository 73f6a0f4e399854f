#include "data/pre_tokenizer.h"

#include <utf8proc.h>

#include "base/error.h"
#include "data/utf8.h"

namespace trainer {
namespace {

// The pieces that GPT-2 cuts text into; what ByteLevel does with `use_regex`.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Calls `piece(text part)` for the matches that `matches(found)` reports and for what lies between them.
template <class Matches, class Piece>
void isolate(std::string_view text, Matches&& matches, Piece&& piece) {
  size_t done = 0;
  matches([&](size_t begin, size_t end) {
    if (begin > done) piece(text.substr(done, begin - done));
    piece(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) piece(text.substr(done));
}

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

template <class Found>
void for_each_digits(std::string_view text, bool individual, Found&& found) {
  constexpr size_t kNone = std::string_view::npos;
  size_t run = kNone, length = 0;
  for (size_t i = 0; i < text.size(); i += length) {
    const bool numeric = is_numeric(decode_utf8(text, i, length));
    if (numeric && individual) {
      found(i, i + length);
    } else if (numeric) {
      if (run == kNone) run = i;
    } else if (run != kNone) {
      found(std::exchange(run, kNone), i);
    }
  }
  if (run != kNone) found(run, text.size());
}

template <class Found>
void for_each_occurrence(std::string_view text, std::string_view wanted, Found&& found) {
  for (size_t at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size()))
    found(at, at + wanted.size());
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& description, const std::string& where) {
  if (description.is_null())
    input_error("{}: no pre_tokenizer; only byte-level BPE tokenizers are supported", where);
  add_step(description, where, "pre_tokenizer", true);
  if (!ends_in_byte_level_)
    input_error("{}: pre_tokenizer has no ByteLevel; only byte-level BPE tokenizers are supported", where);
}

void PreTokenizer::add_step(const Json& description, const std::string& where, const std::string& path,
                            bool last) {
  const std::string place = where + ": " + path;
  const std::string type = json_string(description, "type", place);
  if (ends_in_byte_level_) input_error("{}: {} after ByteLevel is not supported", place, type);
  if (type == "Sequence") {
    const auto parts = description.find("pretokenizers");
    if (parts == description.end() || !parts->is_array())
      input_error("{}: expected a list 'pretokenizers'", place);
    for (size_t i = 0; i < parts->size(); ++i)
      add_step((*parts)[i], where, fmt::format("{}.pretokenizers[{}]", path, i),
               last && i + 1 == parts->size());
  } else if (type == "ByteLevel") {
    ends_in_byte_level_ = true;
    if (json_bool(description, "add_prefix_space", place, true)) {
      steps_.emplace_back(PrefixSpace{});
      adds_space_prefix_ = true;
    }
    if (json_bool(description, "use_regex", place, true))
      steps_.emplace_back(SplitByExpression{RegularExpression(kGpt2Pattern, place)});
  } else if (type == "Split") {
    if (const auto behavior = json_string(description, "behavior", place); behavior != "Isolated")
      input_error("{}: Split with behavior {} is not supported, only Isolated", place, behavior);
    if (json_bool(description, "invert", place, false))
      input_error("{}: Split with invert is not supported", place);
    const auto pattern = description.find("pattern");
    if (pattern == description.end()) input_error("{}: key 'pattern' is missing", place);
    if (pattern->is_object() && pattern->contains("String")) {
      steps_.emplace_back(SplitByText{json_string(*pattern, "String", place)});
      if (std::get<SplitByText>(steps_.back()).text.empty()) input_error("{}: the pattern is empty", place);
    } else {
      steps_.emplace_back(SplitByExpression{RegularExpression(json_string(*pattern, "Regex", place), place)});
    }
  } else if (type == "Digits") {
    steps_.emplace_back(SplitDigits{json_bool(description, "individual_digits", place, false)});
  } else {
    input_error("{}: pre-tokenizer {} is not supported", place, type);
  }
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text, bool continues,
                                                  std::deque<std::string>& storage) const {
  std::vector<std::string_view> pieces, next;
  if (!text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    if (std::holds_alternative<PrefixSpace>(step)) {
      for (size_t i = continues ? 1 : 0; i < pieces.size(); ++i)
        if (!pieces[i].starts_with(' ')) pieces[i] = storage.emplace_back(1, ' ').append(pieces[i]);
      continue;
    }
    next.clear();
    const auto keep = [&](std::string_view piece) { next.push_back(piece); };
    for (const std::string_view piece : pieces) {
      if (const auto* by_expression = std::get_if<SplitByExpression>(&step))
        isolate(
            piece, [&](auto&& found) { by_expression->expression.for_each_match(piece, found); }, keep);
      else if (const auto* by_text = std::get_if<SplitByText>(&step))
        isolate(
            piece, [&](auto&& found) { for_each_occurrence(piece, by_text->text, found); }, keep);
      else
        isolate(
            piece,
            [&](auto&& found) { for_each_digits(piece, std::get<SplitDigits>(step).individual, found); },
            keep);
    }
    pieces.swap(next);
  }
  return pieces;
}

}  // namespace trainer
