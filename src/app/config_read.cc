#include <algorithm>
#include <map>

#include "app/config_check.h"
#include "app/config_fields.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"

namespace trainer {
namespace {

using namespace config_fields;

// Values given on the command line, merged into the document before it is read.
class Overrides {
 public:
  Overrides(std::string file, std::span<const std::string> assignments, Json& root) : file_(std::move(file)) {
    for (const auto& assignment : assignments) apply(assignment, root);
  }

  // Where the value at `path` came from, for messages.
  std::string source(const std::string& path) const {
    for (const auto& [set, text] : raw_)
      if (path == set || path.starts_with(set + ".")) return "--set " + set;
    return file_;
  }
  // The text after "=" of an override of exactly this path.
  const std::string* raw(const std::string& path) const {
    const auto it = raw_.find(path);
    return it == raw_.end() ? nullptr : &it->second;
  }

 private:
  void apply(const std::string& assignment, Json& root) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0)
      input_error("--set {}: expected KEY=VALUE, for example --set training.steps=100", assignment);
    const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
    Json* at = &root;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string part = path.substr(begin, end - begin);
      if (part.empty())
        input_error("--set {}: '{}' has an empty part; write it as section.key", assignment, path);
      if (at->is_null()) *at = Json::object();
      if (!at->is_object())
        input_error("--set {}: '{}' is not an object, so nothing in it can be set", assignment,
                    path.substr(0, begin - 1));
      at = &(*at)[part];
      begin = end + 1;
    }
    *at = Json::accept(text) ? parse_json(text, "--set " + path) : Json(text);
    raw_[path] = text;
  }

  std::string file_;
  std::map<std::string, std::string> raw_;
};

std::string in_words(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return text;
    case Json::value_t::string:
      return "the string " + text;
    case Json::value_t::array:
      return "the list " + text;
    case Json::value_t::object:
      return "the object " + text;
    default:
      return text;
  }
}

class Reader {
 public:
  explicit Reader(const Overrides& overrides) : overrides_(overrides) {}

  void read(const Json& root, std::vector<Section> sections) {
    if (!root.is_object())
      input_error("{}: expected an object with the sections model, data, training, ...; found {}",
                  overrides_.source(""), in_words(root));
    sections_ = &sections;
    std::vector<std::string> names;
    for (const auto& section : sections) names.push_back(section.name);
    for (const auto& [key, value] : root.items()) {
      if (key == "$schema") continue;  // editors find the schema by it
      if (std::find(names.begin(), names.end(), key) == names.end()) unknown("", key, names);
    }
    const Json nothing = Json::object();
    for (const auto& section : sections) {
      const auto it = root.find(section.name);
      read_fields(it == root.end() ? nothing : *it, section.fields, section.name);
    }
  }

 private:
  void read_fields(const Json& object, const std::vector<Field>& fields, const std::string& path) {
    if (!object.is_object()) wrong(path, "an object", object);
    std::vector<std::string> names;
    for (const auto& field : fields) names.push_back(field.name);
    for (const auto& [key, value] : object.items())
      if (std::find(names.begin(), names.end(), key) == names.end()) unknown(path, key, names);
    for (const auto& field : fields) {
      const std::string key = path + "." + field.name;
      const bool given = object.contains(field.name);
      const auto stand_in = object.find(field.instead_of);
      const bool replaced = stand_in != object.end() && *stand_in != "";
      if (given && replaced)
        input_error("{}: keys '{}' and '{}.{}' exclude each other; remove one of them",
                    overrides_.source(key), key, path, field.instead_of);
      if (given) read_value(object.at(field.name), field, key);
      if (!given && !replaced && field.is_required)
        input_error(
            "{}: key '{}' is missing; give {}{}. {}", overrides_.source(path), key, field.expectation(),
            field.instead_of.empty() ? "" : fmt::format(" (or '{}.{}')", path, field.instead_of), field.doc);
    }
  }

  void read_value(const Json& json, const Field& field, const std::string& key) {
    std::visit(Overloaded{[&](int64_t* value) { *value = integer(json, field, key); },
                          [&](std::optional<int64_t>* value) { *value = integer(json, field, key); },
                          [&](double* value) {
                            if (!json.is_number() || !field.in_range(json.get<double>()))
                              wrong(key, field.expectation(), json);
                            *value = json.get<double>();
                          },
                          [&](bool* value) { *value = boolean(json, field, key); },
                          [&](std::optional<bool>* value) { *value = boolean(json, field, key); },
                          [&](std::string* value) { *value = string(json, field, key); },
                          [&](ByteSize* value) {
                            if (json.is_string())
                              value->bytes = parse_bytes(json.get<std::string>(), place(key));
                            else
                              value->bytes = integer(json, field, key);
                          },
                          [&](std::vector<int64_t>* value) {
                            if (!json.is_array()) wrong(key, field.expectation(), json);
                            value->clear();
                            for (const auto& item : json) value->push_back(integer(item, field, key));
                          },
                          [&](std::vector<std::string>* value) { *value = words(json, field, key); },
                          [&](DataPath* value) { *value = data_path(json, field, key); },
                          [&](std::optional<RopeScaling>* value) {
                            value->reset();
                            if (json.is_null()) return;
                            RopeScaling scaling;
                            read_fields(json, describe(scaling), key);
                            *value = scaling;
                          },
                          [&](const Choice& choice) {
                            const std::string word = json.is_string() ? json.get<std::string>() : "";
                            const auto it = std::find(choice.names.begin(), choice.names.end(), word);
                            if (it == choice.names.end())
                              wrong(key, field.expectation(), json, nearest_name(word, choice.names));
                            choice.set(static_cast<size_t>(it - choice.names.begin()));
                          }},
               field.value);
  }

  int64_t integer(const Json& json, const Field& field, const std::string& key) const {
    const auto value = exact_integer(json);
    if (!value || !field.in_range(static_cast<double>(*value))) wrong(key, field.expectation(), json);
    return *value;
  }

  bool boolean(const Json& json, const Field& field, const std::string& key) const {
    if (!json.is_boolean()) wrong(key, field.expectation(), json);
    return json.get<bool>();
  }

  // On the command line a text such as 2024 may well be meant as a string.
  std::string string(const Json& json, const Field& field, const std::string& key) const {
    const std::string* raw = overrides_.raw(key);
    if (!json.is_string() && !raw) wrong(key, field.expectation(), json);
    const std::string text = json.is_string() ? json.get<std::string>() : *raw;
    if (field.is_required && text.empty()) wrong(key, "a string that is not empty", json);
    return text;
  }

  std::vector<std::string> words(const Json& json, const Field& field, const std::string& key) const {
    if (!json.is_array()) wrong(key, field.expectation(), json);
    std::vector<std::string> list;
    for (const auto& item : json) {
      const std::string word = item.is_string() ? item.get<std::string>() : "";
      const bool known =
          field.items.empty() || std::find(field.items.begin(), field.items.end(), word) != field.items.end();
      if (word.empty() || !known) wrong(key, field.expectation(), item, nearest_name(word, field.items));
      list.push_back(word);
    }
    return list;
  }

  DataPath data_path(const Json& json, const Field& field, const std::string& key) const {
    DataPath path;
    if (json.is_string()) path.prefixes.push_back(json.get<std::string>());
    if (json.is_array()) {
      const bool weighted = !json.empty() && json[0].is_number();
      for (size_t i = 0; i < json.size(); ++i) {
        if (weighted && i % 2 == 0) {
          if (!json[i].is_number() || !(json[i].get<double>() > 0))
            wrong(key, "a weight above 0 before each path", json[i]);
          path.weights.push_back(json[i].get<double>());
        } else {
          if (!json[i].is_string())
            wrong(key, weighted ? "a path after each weight" : field.expectation(), json[i]);
          path.prefixes.push_back(json[i].get<std::string>());
        }
      }
      if (weighted && path.weights.size() != path.prefixes.size())
        wrong(key, "a path after each weight", json);
    }
    const bool empty_name = std::find(path.prefixes.begin(), path.prefixes.end(), "") != path.prefixes.end();
    if (path.prefixes.empty() || empty_name) wrong(key, field.expectation(), json);
    return path;
  }

  std::string place(const std::string& key) const {
    return fmt::format("{}: key '{}'", overrides_.source(key), key);
  }

  [[noreturn]] void wrong(const std::string& key, const std::string& expected, const Json& found,
                          const std::string& nearest = "") const {
    input_error("{}: expected {}, found {}{}", place(key), expected, in_words(found),
                nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest));
  }

  // The key that was probably meant: the same word in another section, a name that other programs give it, or
  // the nearest spelling.
  std::string meant(const std::string& path, const std::string& key,
                    const std::vector<std::string>& names) const {
    const std::string prefix = path.empty() ? "" : path + ".";
    std::vector<std::string> everywhere;
    for (const auto& section : *sections_)
      for (const auto& field : section.fields) {
        const auto& other = field.elsewhere;
        everywhere.push_back(field.name);
        if (field.name == key || std::find(other.begin(), other.end(), key) != other.end())
          return section.name + "." + field.name;
      }
    if (const std::string near = nearest_name(key, names); !near.empty()) return prefix + near;
    const std::string near = nearest_name(key, everywhere);
    for (const auto& section : *sections_)
      for (const auto& field : section.fields)
        if (!near.empty() && field.name == near) return section.name + "." + near;
    return "";
  }

  [[noreturn]] void unknown(const std::string& path, const std::string& key,
                            const std::vector<std::string>& names) const {
    const std::string full = path.empty() ? key : path + "." + key;
    const std::string guess = meant(path, key, names);
    if (!guess.empty())
      input_error("{}: unknown key '{}'; did you mean '{}'?", overrides_.source(full), full, guess);
    std::string known;
    for (const auto& name : names) known += (known.empty() ? "" : ", ") + name;
    input_error("{}: unknown key '{}'; known {}: {}", overrides_.source(full), full,
                path.empty() ? "sections are" : "keys there are", known);
  }

  const Overrides& overrides_;
  const std::vector<Section>* sections_ = nullptr;
};

}  // namespace

Config parse_config(std::string_view text, const std::string& name, std::span<const std::string> overrides) {
  Json root = parse_json(text, name);
  const Overrides sources(name, overrides, root);
  Config config;
  Reader(sources).read(root, describe(config));
  fill_derived_defaults(config);
  check_config(config, name);
  return config;
}

Config read_config(const std::string& path, std::span<const std::string> overrides) {
  return parse_config(read_file(path), path, overrides);
}

Json config_to_json(const Config& config) {
  Config copy = config;  // fields point into what they describe
  Json root = Json::object();
  for (const auto& section : describe(copy)) {
    Json& object = root[section.name] = Json::object();
    for (const auto& field : section.fields) {
      // A key that another one stands in for would be refused on reading back.
      const auto it = object.find(field.instead_of);
      if (it == object.end() || it->get<std::string>().empty()) object[field.name] = to_json(field);
    }
    if (object.contains("hugging_face") && object["hugging_face"].get<std::string>().empty())
      object.erase("hugging_face");
  }
  return root;
}

}  // namespace trainer
