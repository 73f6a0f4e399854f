// The arguments of subcommands: --name VALUE, --name=VALUE, --flag, and the path of a config.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer {

// Throws InputError for unknown names (naming the nearest known one), repeated ones, and missing or needless
// values.
class Options {
 public:
  Options(std::span<const std::string> words, const std::vector<std::string>& with_value,
          const std::vector<std::string>& flags);

  bool has(const std::string& name) const { return values_.contains(name); }
  std::optional<std::string> find(const std::string& name) const;
  // Throws InputError when it was not given.
  const std::string& required(const std::string& name) const;
  // Throw InputError when the value is not a number, or is below `least`.
  int64_t integer(const std::string& name, int64_t fallback, int64_t least, int64_t most = INT64_MAX) const;
  double number(const std::string& name, double fallback, double least) const;

 private:
  std::map<std::string, std::string> values_;
};

// Arguments of a subcommand that reads a config.
struct ConfigArguments {
  std::string config;                  // its path; of several, the first
  std::vector<std::string> configs;    // all of them
  std::vector<std::string> overrides;  // of each --set: SECTION.KEY=VALUE
  Options options;                     // the rest
};

// Throws InputError as Options does, and when there is not exactly one path (`several`: at least one).
ConfigArguments read_config_arguments(std::span<const std::string> words,
                                      const std::vector<std::string>& with_value,
                                      const std::vector<std::string>& flags, bool several = false);

}  // namespace trainer
