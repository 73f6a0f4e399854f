#include <cmath>

#include "app/config_fields.h"
#include "base/error.h"
#include "base/units.h"

namespace trainer::config_fields {
namespace {

std::string quoted_list(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "\"" : ", \"") + word + "\"";
  return text;
}

std::string number_range(const Field& f, const std::string& noun) {
  const bool low = std::isfinite(f.low), high = std::isfinite(f.high);
  std::string text = noun;
  if (low) text += fmt::format(" {} {}", f.above_low ? "above" : "of at least", f.low);
  if (high) text += fmt::format("{} {} {}", low ? " and" : "", f.below_high ? "below" : "at most", f.high);
  return text;
}

}  // namespace

bool Field::in_range(double number) const {
  return (above_low ? number > low : number >= low) && (below_high ? number < high : number <= high);
}

std::string Field::expectation() const {
  return std::visit(
      Overloaded{
          [&](int64_t*) { return number_range(*this, "an integer"); },
          [&](std::optional<int64_t>*) { return number_range(*this, "an integer"); },
          [&](double*) { return number_range(*this, "a number"); },
          [&](bool*) -> std::string { return "true or false"; },
          [&](std::optional<bool>*) -> std::string { return "true or false"; },
          [&](std::string*) -> std::string { return "a string"; },
          [&](ByteSize*) -> std::string { return "bytes as an integer or as a string such as \"20GiB\""; },
          [&](std::vector<int64_t>*) { return "a list of integers" + number_range(*this, ""); },
          [&](std::vector<std::string>*) {
            return items.empty() ? "a list of strings" : "a list of words out of " + quoted_list(items);
          },
          [&](DataPath*) -> std::string {
            return "a path, a list of paths, or a list that alternates weight and path";
          },
          [&](std::optional<RopeScaling>*) -> std::string { return "an object or null"; },
          [&](const Choice& choice) {
            return (choice.names.size() > 1 ? "one of " : "") + quoted_list(choice.names);
          }},
      value);
}

Json to_json(const Field& field) {
  return std::visit(
      Overloaded{[](const auto* value) -> Json { return *value; },
                 [](const std::optional<int64_t>* value) -> Json { return *value ? Json(**value) : Json(); },
                 [](const std::optional<bool>* value) -> Json { return *value ? Json(**value) : Json(); },
                 [](const ByteSize* value) -> Json {
                   return value->bytes ? Json(exact_bytes(value->bytes)) : Json(0);
                 },
                 [](const DataPath* value) -> Json {
                   if (value->weights.empty() && value->prefixes.size() == 1) return value->prefixes[0];
                   Json list = Json::array();
                   for (size_t i = 0; i < value->prefixes.size(); ++i) {
                     if (!value->weights.empty()) list.push_back(value->weights[i]);
                     list.push_back(value->prefixes[i]);
                   }
                   return list;
                 },
                 [](const std::optional<RopeScaling>* value) -> Json {
                   if (!*value) return {};
                   RopeScaling scaling = **value;
                   Json object = Json::object();
                   for (const Field& inner : describe(scaling)) object[inner.name] = to_json(inner);
                   return object;
                 },
                 [](const Choice& choice) -> Json { return choice.names.at(choice.get()); }},
      field.value);
}

}  // namespace trainer::config_fields
