#include "data/regular_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/utf8.h"

namespace trainer {
namespace {

struct Release {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

// What one thread needs to match; one serves every expression, as they are matched one after the other and
// only the place of the whole match is read.
struct MatchState {
  std::unique_ptr<pcre2_match_data, Release> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_jit_stack, Release> stack{pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)};
  std::unique_ptr<pcre2_match_context, Release> context{pcre2_match_context_create(nullptr)};

  MatchState() {
    if (!data || !stack || !context) throw std::bad_alloc();
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// Escapes that mean the same in both dialects, besides escaped punctuation.
constexpr std::string_view kSharedEscapes = "dDpPrntf";

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Groups that mean the same in both: (?:  (?=  (?!  (?<=  (?<!  (?>  (?i:
bool shared_group(std::string_view after_parenthesis) {
  if (!after_parenthesis.starts_with('?')) return !after_parenthesis.starts_with('*');
  for (const std::string_view start : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"})
    if (after_parenthesis.starts_with(start)) return true;
  return false;
}

}  // namespace

struct RegularExpression::Code {
  std::unique_ptr<pcre2_code, Release> compiled;
};

std::string translate_pattern(std::string_view pattern, const std::string& where) {
  const auto refuse = [&](std::string_view construct) {
    input_error("{}: '{}' in the pattern {} is not supported", where, construct, pattern);
  };
  std::string result;
  bool in_set = false;
  size_t set_start = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\') {
      if (rest.size() < 2) refuse("a backslash at the end");
      const char escaped = rest[1];
      if (escaped == 's' || escaped == 'S')
        result += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      else if (!is_ascii_alphanumeric(escaped) || kSharedEscapes.find(escaped) != std::string_view::npos)
        result += rest.substr(0, 2);
      else
        refuse(rest.substr(0, 2));
      ++i;
      continue;
    }
    if (in_set) {
      if (c == '[') refuse("a set inside a set");
      if (rest.starts_with("&&")) refuse("&&");
      const bool first = i == set_start || (i == set_start + 1 && pattern[set_start] == '^');
      if (c == ']' && first) refuse("an unescaped ] at the start of a set");
      if (c == ']') in_set = false;
    } else if (c == '[') {
      in_set = true;
      set_start = i + 1;
    } else if (c == '^' || c == '$') {
      refuse(rest.substr(0, 1));
    } else if (c == '(' && !shared_group(rest.substr(1))) {
      refuse(rest.substr(0, 4));
    } else if (rest.starts_with("{,")) {
      refuse("{,n}");
    } else if (rest.starts_with("}+") || rest.starts_with("}?")) {
      // After `\p{L}` both dialects read a plain quantifier; after `{n,m}` they do not agree.
      const size_t open = pattern.rfind('{', i);
      const bool property = open != std::string_view::npos && open >= 2 && pattern[open - 2] == '\\';
      if (!property) refuse("{}" + std::string(rest.substr(1, 1)));
    }
    result += c;
  }
  return result;
}

RegularExpression::RegularExpression(const std::string& pattern, const std::string& where) : where_(where) {
  const std::string translated = translate_pattern(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_ = std::make_unique<Code>();
  code_->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!code_->compiled)
    input_error("{}: the pattern {} does not compile: {}", where, pattern, message_of(error));
  // Without JIT support in the library matching works all the same, slower.
  pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE);
}

RegularExpression::~RegularExpression() = default;
RegularExpression::RegularExpression(RegularExpression&& other) noexcept = default;
RegularExpression& RegularExpression::operator=(RegularExpression&& other) noexcept = default;

bool RegularExpression::next_match(std::string_view text, size_t position, size_t& begin, size_t& end) const {
  thread_local MatchState state;
  const auto match = [&](uint32_t options) {
    return pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                       position, PCRE2_NO_UTF_CHECK | options, state.data.get(), state.context.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) input_error("{}: matching failed: {}", where_, message_of(result));
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(state.data.get());
  begin = place[0];
  end = place[1];
  return true;
}

bool RegularExpression::step(std::string_view text, size_t& position) {
  if (position >= text.size()) return false;
  size_t length = 0;
  decode_utf8(text, position, length);
  position += length;
  return true;
}

}  // namespace trainer
