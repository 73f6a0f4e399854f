#include "app/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace trainer {
namespace {

template <class Number>
std::optional<Number> parse(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Options::Options(std::span<const std::string> words, const std::vector<std::string>& with_value,
                 const std::vector<std::string>& flags) {
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i], value;
    const size_t equals = name.starts_with("--") ? name.find('=') : std::string::npos;
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    if (contains(with_value, name)) {
      if (equals == std::string::npos) {
        if (i + 1 == words.size()) input_error("{} needs a value", name);
        value = words[++i];
      }
    } else if (contains(flags, name)) {
      if (equals != std::string::npos) input_error("{} takes no value", name);
    } else {
      std::vector<std::string> known = with_value;
      known.insert(known.end(), flags.begin(), flags.end());
      const std::string near = nearest_name(name, known);
      input_error("unknown argument '{}'{}", name,
                  near.empty() ? "; --help lists the arguments" : fmt::format("; did you mean {}?", near));
    }
    if (!values_.emplace(name, value).second) input_error("{} is given twice", name);
  }
}

std::optional<std::string> Options::find(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::nullopt : std::optional(it->second);
}

const std::string& Options::required(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) input_error("{} is missing; --help lists the arguments", name);
  return it->second;
}

int64_t Options::integer(const std::string& name, int64_t fallback, int64_t least, int64_t most) const {
  const auto text = find(name);
  if (!text) return fallback;
  const auto value = parse<int64_t>(*text);
  if (!value || *value < least)
    input_error("{}: expected a whole number from {} on, found '{}'", name, least, *text);
  if (*value > most) input_error("{}: expected at most {}, found '{}'", name, most, *text);
  return *value;
}

double Options::number(const std::string& name, double fallback, double least) const {
  const auto text = find(name);
  if (!text) return fallback;
  const auto value = parse<double>(*text);
  if (!value || !std::isfinite(*value) || *value < least)
    input_error("{}: expected a number from {} on, found '{}'", name, least, *text);
  return *value;
}

ConfigArguments read_config_arguments(std::span<const std::string> words,
                                      const std::vector<std::string>& with_value,
                                      const std::vector<std::string>& flags, bool several) {
  std::vector<std::string> configs, overrides, others;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--set") {
      if (++i == words.size()) input_error("--set needs SECTION.KEY=VALUE after it");
      overrides.push_back(words[i]);
    } else if (word.starts_with("--set=")) {
      overrides.push_back(word.substr(6));
    } else if (word.starts_with("-") || (!several && !configs.empty())) {
      others.push_back(word);
      if (contains(with_value, word) && i + 1 < words.size()) others.push_back(words[++i]);
    } else {
      configs.push_back(word);
    }
  }
  Options options(others, with_value, flags);
  if (configs.empty()) input_error("no config given; --help lists the arguments");
  const std::string first = configs.front();
  return {first, std::move(configs), std::move(overrides), std::move(options)};
}

}  // namespace trainer
