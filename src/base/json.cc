#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

// Builds the document while refusing what nlohmann's default parser lets through.
class DuplicateFinder {
 public:
  bool operator()(int, nlohmann::ordered_json::parse_event_t event, Json& parsed) {
    using Event = nlohmann::ordered_json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key) {
      open_.back().current = parsed.get<std::string>();
      if (!open_.back().keys.insert(open_.back().current).second && duplicate_.empty())
        for (const auto& object : open_) duplicate_ += (duplicate_.empty() ? "" : ".") + object.current;
    }
    return true;
  }
  // The dotted path of the first one; "" when there is none.
  const std::string& duplicate() const { return duplicate_; }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string current;
  };
  std::vector<Object> open_;   // the objects around the place that is being read
  std::string duplicate_;
};

const Json* find(const Json& object, const std::string& key, const std::string& where) {
  if (!object.is_object()) input_error("{}: expected an object holding '{}', found {}", where, key, object.type_name());
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& get(const Json& object, const std::string& key, const std::string& where) {
  const Json* value = find(object, key, where);
  if (!value) input_error("{}: key '{}' is missing", where, key);
  return *value;
}

[[noreturn]] void wrong_type(const Json& value, const std::string& key, const std::string& where, const char* expected) {
  input_error("{}: key '{}': expected {}, found {} {}", where, key, expected, value.type_name(), value.dump());
}

int64_t as_integer(const Json& value, const std::string& key, const std::string& where) {
  if (const auto integer = exact_integer(value)) return *integer;
  wrong_type(value, key, where, value.is_number_integer() ? "an integer of at most 63 bits" : "an integer");
}

double as_number(const Json& value, const std::string& key, const std::string& where) {
  if (!value.is_number()) wrong_type(value, key, where, "a number");
  return value.get<double>();
}

template <class Float>
std::string shortest_of(Float value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  if (text.starts_with("\xEF\xBB\xBF")) input_error("{}: starts with a UTF-8 byte-order mark; save it without one", name);
  DuplicateFinder duplicates;
  Json parsed;
  try {
    parsed = Json::parse(text.begin(), text.end(),
                         [&](int depth, auto event, Json& value) { return duplicates(depth, event, value); });
  } catch (const nlohmann::json::exception& e) {
    input_error("{}: not valid JSON: {}", name, e.what());
  }
  if (!duplicates.duplicate().empty()) input_error("{}: key '{}' appears twice in one object", name, duplicates.duplicate());
  return parsed;
}

Json parse_json_file(const std::string& path) { return parse_json(read_file(path), path); }

std::optional<int64_t> exact_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 0x1p53) return std::nullopt;
  return static_cast<int64_t>(number);
}

int64_t json_integer(const Json& object, const std::string& key, const std::string& where) {
  return as_integer(get(object, key, where), key, where);
}
int64_t json_integer(const Json& object, const std::string& key, const std::string& where, int64_t fallback) {
  const Json* value = find(object, key, where);
  return value ? as_integer(*value, key, where) : fallback;
}
double json_number(const Json& object, const std::string& key, const std::string& where) {
  return as_number(get(object, key, where), key, where);
}
double json_number(const Json& object, const std::string& key, const std::string& where, double fallback) {
  const Json* value = find(object, key, where);
  return value ? as_number(*value, key, where) : fallback;
}
bool json_bool(const Json& object, const std::string& key, const std::string& where, bool fallback) {
  const Json* value = find(object, key, where);
  if (!value) return fallback;
  if (!value->is_boolean()) wrong_type(*value, key, where, "true or false");
  return value->get<bool>();
}
std::string json_string(const Json& object, const std::string& key, const std::string& where) {
  const Json& value = get(object, key, where);
  if (!value.is_string()) wrong_type(value, key, where, "a string");
  return value.get<std::string>();
}
std::string json_string(const Json& object, const std::string& key, const std::string& where, const std::string& fallback) {
  return find(object, key, where) ? json_string(object, key, where) : fallback;
}

std::string nearest_name(const std::string& key, const std::vector<std::string>& candidates) {
  const auto distance = [](const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= b.size(); ++j)
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
    }
    return row.back();
  };
  std::string best;
  // A guess keeps at least one character of what was written.
  size_t best_distance = std::min(std::max<size_t>(2, key.size() / 3) + 1, key.size());
  for (const auto& candidate : candidates)
    if (const size_t d = distance(key, candidate); d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  return best;
}

std::string shortest(float value) { return shortest_of(value); }
std::string shortest(double value) { return shortest_of(value); }

}  // namespace trainer
