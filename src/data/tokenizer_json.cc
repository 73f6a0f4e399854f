#include "data/tokenizer_json.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "data/utf8.h"

namespace trainer {
namespace {

// Vocabularies hold 10^5 keys; `Json`, which keeps the order of keys, looks each of them up in linear time.
using Tree = nlohmann::json;

constexpr int64_t kLargestId = 1 << 24;

Tree parse(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    Tree tree = Tree::parse(text);
    if (!tree.is_object() || !tree.contains("model") || !tree["model"].is_object())
      input_error("{}: not a tokenizer: expected an object with the key 'model'", path.string());
    return tree;
  } catch (const Tree::exception& e) {
    input_error("{}: not valid JSON: {}", path.string(), e.what());
  }
}

void check_keys(const Json& object, const std::vector<std::string>& known, const std::string& where) {
  if (!object.is_object()) input_error("{}: expected an object, found {}", where, object.type_name());
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      input_error("{}: key '{}' is not supported", where, key);
}

int32_t checked_id(const Tree& value, const std::string& token, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value >= kLargestId)
    input_error("{}: token '{}' has the id {}; expected an integer from 0 to {}", where, token, value.dump(),
                kLargestId - 1);
  return value.get<int32_t>();
}

// The 256 letters that such files write bytes with: printable ones stand for themselves, the rest follow from
// U+0100 on.
std::map<char32_t, char> byte_letters() {
  std::map<char32_t, char> letters;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    letters[printable ? static_cast<char32_t>(byte) : next++] = static_cast<char>(byte);
  }
  return letters;
}

BpeDefinition::Token token_of(const std::string& written) {
  static const std::map<char32_t, char> letters = byte_letters();
  BpeDefinition::Token token{.bytes = {}, .present = true};
  size_t length = 0;
  for (size_t i = 0; i < written.size(); i += length) {
    const auto letter = letters.find(decode_utf8(written, i, length));
    if (letter == letters.end()) return {.bytes = written, .present = true, .byte_level = false};
    token.bytes += letter->second;
  }
  return token;
}

// Fills a definition from the parts of one file.
class Reader {
 public:
  Reader(BpeDefinition& definition, const std::string& where) : definition_(definition), where_(where) {}

  void read_vocabulary(const Tree& vocabulary) {
    if (!vocabulary.is_object()) input_error("{}: model.vocab: expected an object", where_);
    for (const auto& [written, value] : vocabulary.items())
      place(checked_id(value, written, where_), written, token_of(written));
  }

  void read_merges(const Tree& merges) {
    if (!merges.is_array()) input_error("{}: model.merges: expected a list", where_);
    for (const Tree& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) refuse_merge(merge);
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0];
        right = merge[1];
      } else {
        refuse_merge(merge);
      }
      definition_.merges.push_back({id_of(left, merge), id_of(right, merge), id_of(left + right, merge)});
    }
  }

  void read_model_options(const Json& model) {
    const std::string place = where_ + ": model";
    check_keys(model,
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges"},
               place);
    if (json_number(model, "dropout", place, 0.0) != 0.0) input_error("{}: dropout is not supported", place);
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!json_string(model, affix, place, "").empty()) input_error("{}: {} is not supported", place, affix);
    for (const char* option : {"fuse_unk", "byte_fallback"})
      if (json_bool(model, option, place, false))
        input_error("{}: {} is not supported for byte-level BPE", place, option);
    definition_.ignore_merges = json_bool(model, "ignore_merges", place, false);
    if (const auto unknown = json_string(model, "unk_token", place, ""); !unknown.empty())
      definition_.unknown = named(unknown, place + ".unk_token");
  }

  void read_added_tokens(const Json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) input_error("{}: added_tokens: expected a list", where_);
    for (const Json& item : list) {
      const std::string place = where_ + ": added_tokens";
      check_keys(item, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, place);
      AddedToken token{.id = 0, .content = json_string(item, "content", place)};
      token.id = checked_id(json_integer(item, "id", place), token.content, place);
      token.special = json_bool(item, "special", place, false);
      token.single_word = json_bool(item, "single_word", place, false);
      token.lstrip = json_bool(item, "lstrip", place, false);
      token.rstrip = json_bool(item, "rstrip", place, false);
      token.normalized = json_bool(item, "normalized", place, !token.special);
      if (token.content.empty()) input_error("{}: token {} has no content", place, token.id);
      const auto known = ids_.find(token.content);
      if (known != ids_.end() && known->second != token.id)
        input_error("{}: '{}' has the id {}, but {} in the vocabulary", place, token.content, token.id,
                    known->second);
      if (known == ids_.end()) this->place(token.id, token.content, {});
      // It stands for its text as given, and never comes out of pieces of text when it is special.
      const auto spelled = token_of(token.content);
      const bool reachable = spelled.byte_level && spelled.bytes == token.content && !token.special;
      definition_.tokens[static_cast<size_t>(token.id)] = {token.content, true,
                                                           reachable && known != ids_.end()};
      definition_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const Json& normalizer, const std::string& path) {
    if (normalizer.is_null()) return;
    const std::string place = where_ + ": " + path;
    const std::string type = json_string(normalizer, "type", place);
    if (type == "NFC") {
      definition_.nfc = true;
    } else if (type == "Sequence") {
      for (const Json& part : list_in(normalizer, "normalizers", place))
        read_normalizer(part, path + ".normalizers");
    } else {
      input_error("{}: normalizer {} is not supported", place, type);
    }
  }

  void read_post_processor(const Json& processor, const std::string& path) {
    if (processor.is_null()) return;
    const std::string place = where_ + ": " + path;
    const std::string type = json_string(processor, "type", place);
    if (type == "ByteLevel") return;  // moves offsets, not tokens
    if (type == "Sequence") {
      for (const Json& part : list_in(processor, "processors", place))
        read_post_processor(part, path + ".processors");
    } else if (type == "TemplateProcessing") {
      read_template(processor, place);
    } else {
      input_error("{}: post-processor {} is not supported", place, type);
    }
  }

  // No decoder at all leaves the bytes of the tokens, which is what ByteLevel makes of them.
  void check_decoder(const Json& decoder, const std::string& path) {
    if (decoder.is_null()) return;
    const std::string place = where_ + ": " + path;
    const std::string type = json_string(decoder, "type", place);
    if (type == "Sequence") {
      for (const Json& part : list_in(decoder, "decoders", place)) check_decoder(part, path + ".decoders");
    } else if (type != "ByteLevel") {
      input_error("{}: decoder {} is not supported", place, type);
    }
  }

  void read_roles(const std::filesystem::path& config_path) {
    if (std::error_code ignored; std::filesystem::exists(config_path, ignored)) {
      const Json config = parse_json_file(config_path.string());
      definition_.bos = role(config, "bos_token", config_path.string());
      definition_.eos = role(config, "eos_token", config_path.string());
    }
    if (!definition_.bos && !definition_.prefix.empty()) definition_.bos = definition_.prefix[0];
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>"})
      if (const auto found = ids_.find(name); found != ids_.end() && !definition_.eod)
        definition_.eod = found->second;
    if (!definition_.eod) definition_.eod = definition_.eos;
  }

 private:
  void place(int32_t id, const std::string& written, BpeDefinition::Token token) {
    auto& tokens = definition_.tokens;
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
    if (tokens[static_cast<size_t>(id)].present)
      input_error("{}: token '{}' shares its id {} with another", where_, written, id);
    tokens[static_cast<size_t>(id)] = std::move(token);
    ids_[written] = id;
  }

  int32_t named(const std::string& written, const std::string& place) const {
    const auto found = ids_.find(written);
    if (found == ids_.end()) input_error("{}: '{}' is not in the vocabulary", place, written);
    return found->second;
  }

  [[noreturn]] void refuse_merge(const Tree& merge) const {
    input_error("{}: model.merges: {} is not a pair of tokens", where_, merge.dump());
  }

  int32_t id_of(const std::string& written, const Tree& merge) const {
    const auto found = ids_.find(written);
    if (found == ids_.end())
      input_error("{}: model.merges: {} needs the token '{}', which is not in the vocabulary", where_,
                  merge.dump(), written);
    return found->second;
  }

  const Json& list_in(const Json& object, const char* key, const std::string& place) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_array()) input_error("{}: expected a list '{}'", place, key);
    return *found;
  }

  void read_template(const Json& processor, const std::string& place) {
    bool after = false;
    for (const Json& part : list_in(processor, "single", place)) {
      if (part.is_object() && part.contains("Sequence")) {
        if (std::exchange(after, true)) input_error("{}: the text stands twice in 'single'", place);
      } else if (part.is_object() && part.contains("SpecialToken")) {
        const std::string name = json_string(part["SpecialToken"], "id", place);
        const auto tokens = processor.find("special_tokens");
        if (tokens == processor.end() || !tokens->is_object() || !tokens->contains(name))
          input_error("{}: '{}' is not among the special_tokens", place, name);
        for (const Json& id : list_in((*tokens)[name], "ids", place))
          (after ? definition_.suffix : definition_.prefix).push_back(checked_id(id, name, place));
      } else {
        input_error("{}: {} in 'single' is not supported", place, part.dump());
      }
    }
    if (!after) input_error("{}: the text does not stand in 'single'", place);
  }

  std::optional<int32_t> role(const Json& config, const char* key, const std::string& place) const {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return std::nullopt;
    return named(found->is_object() ? json_string(*found, "content", place + ": " + key)
                                    : json_string(config, key, place),
                 place + ": " + key);
  }

  BpeDefinition& definition_;
  std::string where_;
  std::unordered_map<std::string, int32_t> ids_;  // by the text as the file writes it
};

}  // namespace

BpeDefinition read_tokenizer_json(const std::filesystem::path& path, std::optional<int32_t> eod) {
  const std::string where = path.string();
  Tree tree = parse(path);
  Tree& model = tree["model"];
  const std::string type =
      model.value("type", model.contains("merges") ? Tree("BPE") : Tree("without a type")).dump();
  if (type != "\"BPE\"") input_error("{}: model type {} is not supported, only byte-level BPE", where, type);
  const Tree vocabulary = std::move(model["vocab"]), merges = std::move(model["merges"]);
  model.erase("vocab");
  model.erase("merges");
  const Json rest = tree;  // small now
  check_keys(rest,
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"},
             where);
  const auto part = [&](const char* key) { return rest.contains(key) ? rest[key] : Json(); };

  BpeDefinition definition{.name = where, .pre_tokenizer = PreTokenizer(part("pre_tokenizer"), where)};
  Reader reader(definition, where);
  reader.read_vocabulary(vocabulary);
  reader.read_merges(merges);
  reader.read_added_tokens(part("added_tokens"));
  reader.read_model_options(rest["model"]);
  reader.read_normalizer(part("normalizer"), "normalizer");
  reader.read_post_processor(part("post_processor"), "post_processor");
  reader.check_decoder(part("decoder"), "decoder");
  definition.eod = eod;
  reader.read_roles(path.parent_path() / "tokenizer_config.json");
  for (const auto& ids : {definition.prefix, definition.suffix})
    for (const int32_t id : ids)
      if (static_cast<size_t>(id) >= definition.tokens.size())
        input_error("{}: post_processor: token {} is not in the vocabulary", where, id);
  return definition;
}

bool made_from_sentencepiece(const std::filesystem::path& path) {
  const Tree tree = parse(path);
  const auto mark = tree["model"].find("byte_fallback");
  return mark != tree["model"].end() && mark->is_boolean() && mark->get<bool>();
}

}  // namespace trainer
