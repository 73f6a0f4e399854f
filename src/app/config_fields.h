// The declaration of the config's keys, from which reader, writer, schema and reference page all follow.
// Internal to the config files of this folder.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "app/config.h"

namespace trainer::config_fields {

// A member of an enumeration type, seen as one of `names`.
struct Choice {
  std::vector<std::string> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

// Where a key's value lives. The pointers point into the Config that was described.
using Value = std::variant<int64_t*, std::optional<int64_t>*, double*, bool*, std::optional<bool>*,
                           std::string*, ByteSize*, std::vector<int64_t>*, std::vector<std::string>*,
                           DataPath*, std::optional<RopeScaling>*, Choice>;

struct Field {
  std::string name;
  Value value;
  std::string doc;                     // one line
  std::string derived_default;         // in words, where the default follows from other keys
  std::string instead_of;              // a key of the section that excludes this one, and stands in for it
  std::vector<std::string> items;      // the words that a list of strings may hold; empty: any
  std::vector<std::string> elsewhere;  // names that users of other programs will try; offered when met
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool above_low = false, below_high = false;  // the bound itself is excluded
  bool is_required = false;

  Field& required() { return is_required = true, *this; }
  Field& at_least(double bound) { return low = bound, *this; }
  Field& above(double bound) { return low = bound, above_low = true, *this; }
  Field& at_most(double bound) { return high = bound, *this; }
  Field& below(double bound) { return high = bound, below_high = true, *this; }
  Field& defaults_to(std::string words) { return derived_default = std::move(words), *this; }
  Field& unless(std::string key) { return instead_of = std::move(key), *this; }
  Field& each_of(std::vector<std::string> words) { return items = std::move(words), *this; }
  Field& known_as(std::vector<std::string> names) { return elsewhere = std::move(names), *this; }

  bool in_range(double number) const;
  // What a value must be: "an integer of at least 1", "one of \"fp32\", \"bf16\"", ...
  std::string expectation() const;
};

struct Section {
  std::string name, doc;
  std::vector<Field> fields;
};

std::vector<Section> describe(Config& config);
std::vector<Field> describe(RopeScaling& scaling);

// The value as it stands in a config file. Null for an optional that is not set.
Json to_json(const Field& field);

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace trainer::config_fields
