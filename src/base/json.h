// JSON in, checked: duplicate keys, byte-order marks and non-finite numbers are refused with the place they
// stand at; a reader of objects knows its path, so every message names the key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

using Json = nlohmann::ordered_json;

// Parses `text`; `name` (usually the file) heads every message. Throws InputError.
Json parse_json(std::string_view text, const std::string& name);
Json parse_json_file(const std::string& path);

// Typed member access with messages such as "model.json: key 'a.b': expected an integer, found the string "3"".
// `path` is the dotted path of `object`. The optional forms return `fallback` when the key is absent or null.
int64_t json_integer(const Json& object, const std::string& key, const std::string& where);
int64_t json_integer(const Json& object, const std::string& key, const std::string& where, int64_t fallback);
double json_number(const Json& object, const std::string& key, const std::string& where);
double json_number(const Json& object, const std::string& key, const std::string& where, double fallback);
bool json_bool(const Json& object, const std::string& key, const std::string& where, bool fallback);
std::string json_string(const Json& object, const std::string& key, const std::string& where);
std::string json_string(const Json& object, const std::string& key, const std::string& where,
                        const std::string& fallback);

// The integer that `value` is: 1000 and 1e3 are, 1.5, "3", 2^63 and null are not.
std::optional<int64_t> exact_integer(const Json& value);

// The candidate nearest to `key` by edit distance, or "" when none is near.
std::string nearest_name(const std::string& key, const std::vector<std::string>& candidates);

// A float or double written with the fewest digits that read back to the same bits.
std::string shortest(float value);
std::string shortest(double value);

}  // namespace trainer
