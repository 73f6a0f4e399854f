#include <fmt/core.h>

#include <cmath>
#include <cstdio>

#include "app/command.h"
#include "app/config_fields.h"
#include "app/options.h"

namespace trainer {
namespace {

using namespace config_fields;

Json object_schema(const std::vector<Field>& fields);

void add_bounds(Json& schema, const Field& field, bool integer) {
  const auto number = [&](double bound) { return integer ? Json(static_cast<int64_t>(bound)) : Json(bound); };
  if (std::isfinite(field.low)) schema[field.above_low ? "exclusiveMinimum" : "minimum"] = number(field.low);
  if (std::isfinite(field.high))
    schema[field.below_high ? "exclusiveMaximum" : "maximum"] = number(field.high);
}

Json type_schema(const Field& field) {
  Json schema = Json::object();
  const auto integer = [&] {
    Json type = {{"type", "integer"}};
    add_bounds(type, field, true);
    return type;
  };
  std::visit(
      Overloaded{[&](int64_t*) { schema = integer(); }, [&](std::optional<int64_t>*) { schema = integer(); },
                 [&](double*) {
                   schema["type"] = "number";
                   add_bounds(schema, field, false);
                 },
                 [&](bool*) { schema["type"] = "boolean"; },
                 [&](std::optional<bool>*) { schema["type"] = "boolean"; },
                 [&](std::string*) {
                   schema["type"] = "string";
                   if (field.is_required) schema["minLength"] = 1;
                 },
                 [&](ByteSize*) {
                   schema["type"] = {"integer", "string"};
                   schema["minimum"] = 0;
                   schema["pattern"] = "^[0-9.]+ *([kKmMgGtT]?[iI]?[bB])?$";
                 },
                 [&](std::vector<int64_t>*) {
                   schema["type"] = "array";
                   schema["items"] = integer();
                 },
                 [&](std::vector<std::string>*) {
                   schema["type"] = "array";
                   schema["items"]["type"] = "string";
                   if (!field.items.empty()) schema["items"]["enum"] = field.items;
                 },
                 [&](DataPath*) {
                   schema["type"] = {"string", "array"};
                   schema["minLength"] = 1;
                   schema["minItems"] = 1;
                   schema["items"]["type"] = {"string", "number"};
                 },
                 [&](std::optional<RopeScaling>*) {
                   RopeScaling scaling;
                   schema = object_schema(describe(scaling));
                   schema["type"] = {"object", "null"};
                 },
                 [&](const Choice& choice) { schema["enum"] = choice.names; }},
      field.value);
  return schema;
}

Json object_schema(const std::vector<Field>& fields) {
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  Json required = Json::array(), alternative = Json::array();
  std::string stand_in;
  for (const auto& field : fields) {
    Json property = type_schema(field);
    property["description"] = field.doc;
    if (!field.is_required && field.derived_default.empty()) property["default"] = to_json(field);
    schema["properties"][field.name] = std::move(property);
    if (field.is_required) (field.instead_of.empty() ? required : alternative).push_back(field.name);
    if (!field.instead_of.empty()) stand_in = field.instead_of;
  }
  if (!required.empty()) schema["required"] = required;
  if (!stand_in.empty()) schema["oneOf"] = {{{"required", {stand_in}}}, {{"required", alternative}}};
  return schema;
}

std::string default_text(const Field& field) {
  if (field.is_required) return "**required**";
  if (!field.derived_default.empty()) return field.derived_default;
  return fmt::format("`{}`", to_json(field).dump());
}

std::string table(const std::vector<Field>& fields) {
  std::string text = "| Key | Value | Default | Meaning |\n|---|---|---|---|\n";
  for (const auto& field : fields) {
    const bool alternative = field.is_required && !field.instead_of.empty();
    text += fmt::format("| `{}` | {} | {}{} | {} |\n", field.name, field.expectation(), default_text(field),
                        alternative ? fmt::format(" without `{}`", field.instead_of) : "", field.doc);
  }
  return text;
}

}  // namespace

Json config_schema() {
  Config defaults;
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", "libtrainer configuration"},
                 {"type", "object"},
                 {"additionalProperties", false}};
  schema["properties"]["$schema"] = {{"type", "string"}};
  Json required = Json::array();
  for (const auto& section : describe(defaults)) {
    Json object = object_schema(section.fields);
    object["description"] = section.doc;
    if (object.contains("required") || object.contains("oneOf")) required.push_back(section.name);
    schema["properties"][section.name] = std::move(object);
  }
  schema["required"] = required;
  return schema;
}

std::string config_reference() {
  Config defaults;
  std::string text =
      "# Configuration reference\n\n"
      "Made by `trainer schema --reference` from the program's own declarations; do not edit.\n\n"
      "A run is configured by one JSON file. `trainer train CONFIG.json --set SECTION.KEY=VALUE` overrides "
      "single keys: the\n"
      "value is read as JSON where it is JSON, else as a string. Unknown keys, keys given twice, and values "
      "of another type\n"
      "are errors. Whole numbers may be written as `1e3`; `null` stands only where the table says so. "
      "Relative paths start\n"
      "at the folder the program runs in. `configs/schema.json` describes the same for editors; name it in a "
      "top-level\n"
      "`\"$schema\"` key. The run directory holds the config with every default filled in.\n";
  for (const auto& section : describe(defaults)) {
    text += fmt::format("\n## `{}`\n\n{}\n\n{}", section.name, section.doc, table(section.fields));
    for (const auto& field : section.fields)
      if (std::holds_alternative<std::optional<RopeScaling>*>(field.value)) {
        RopeScaling scaling;
        text += fmt::format("\n### `{}.{}`\n\n{}\n\n{}", section.name, field.name, field.doc,
                            table(describe(scaling)));
      }
  }
  return text;
}

int schema_command(std::span<const std::string> arguments) {
  constexpr const char* kUsage =
      "usage: trainer schema [--reference]\n\n"
      "Prints the JSON Schema of the config.\n\n"
      "  --reference   the reference in Markdown instead\n";
  return run_command({"schema", kUsage, false}, arguments, [&] {
    const bool reference = Options(arguments, {}, {"--reference"}).has("--reference");
    fmt::print("{}", reference ? config_reference() : config_schema().dump(2) + "\n");
  });
}

}  // namespace trainer
