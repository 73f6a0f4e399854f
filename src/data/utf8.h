// UTF-8: checking, decoding, and the character classes that tokenizer files speak of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

// Position of the first byte that does not belong to well-formed UTF-8 (overlong forms, surrogates and values
// past U+10FFFF are ill-formed); npos when all of `text` is well formed.
size_t first_invalid_utf8(std::string_view text);

// `bytes` with every maximal ill-formed subpart replaced by one U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

// The code point that starts at `text[position]` of well-formed UTF-8; `length` becomes its bytes.
char32_t decode_utf8(std::string_view text, size_t position, size_t& length);

// Bytes of the code point that ends just before `position` (> 0) of well-formed UTF-8.
size_t length_before(std::string_view text, size_t position);

void append_utf8(std::string& text, char32_t code_point);

// The Unicode property White_Space.
bool is_white_space(char32_t code_point);

// Letters, marks, numbers that are digits or letters, and connector punctuation: what a regular expression
// calls \w.
bool is_word_character(char32_t code_point);

// Normalisation form C of well-formed UTF-8.
std::string normalise_nfc(std::string_view text);

}  // namespace trainer
