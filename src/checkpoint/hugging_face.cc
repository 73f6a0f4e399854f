#include "checkpoint/hugging_face.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kHead[] = "lm_head.weight";
constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "transformer."};

// What older transformers saved beside the weights: rotary frequencies, and GPT-2's causal masks.
bool is_derived(std::string_view name, Architecture architecture) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return architecture == Architecture::kGpt2 &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

HuggingFaceFolder::HuggingFaceFolder(const fs::path& folder) : folder_(folder) {
  const std::string config = (folder / "config.json").string();
  config_ = model_config_from_hugging_face(parse_json_file(config), config);
  for (const char* file : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(folder / file)) tokenizer_ = folder.string();

  if (fs::exists(folder / kSingleFile)) {
    weights_ = (folder / kSingleFile).string();
    files_.emplace_back(folder / kSingleFile);
    for (const auto& [name, tensor] : files_[0].tensors()) tensors_[name] = {&files_[0], &tensor};
  } else if (fs::exists(folder / kIndexFile)) {
    open_shards(folder / kIndexFile);
  } else if (fs::exists(folder / "pytorch_model.bin") ||
             fs::exists(folder / "pytorch_model.bin.index.json")) {
    input_error(
        "{}: the weights are a pytorch_model.bin; save them as safetensors (transformers: "
        "save_pretrained(..., safe_serialization=True))",
        folder.string());
  } else {
    input_error("{}: no weights: neither {} nor {} is there", folder.string(), kSingleFile, kIndexFile);
  }
}

void HuggingFaceFolder::open_shards(const fs::path& index) {
  weights_ = index.string();
  const Json json = parse_json_file(weights_);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) input_error("{}: key 'weight_map' is missing", weights_);
  std::map<std::string, std::vector<std::string>> contents;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>()))
      input_error("{}: weight_map['{}'] is not the name of a file in this folder", weights_, tensor);
    contents[file.get<std::string>()].push_back(tensor);
  }
  files_.reserve(contents.size());  // they are pointed at
  for (const auto& [name, tensors] : contents) {
    const SafetensorsFile& file = files_.emplace_back(folder_ / name);
    for (const auto& tensor : tensors) {
      const StoredTensor* stored = file.find(tensor);
      if (!stored)
        input_error("{}: holds no tensor '{}', which {} says it does", file.path().string(), tensor,
                    kIndexFile);
      tensors_[tensor] = {&file, stored};
    }
  }
}

HuggingFaceFolder::Found HuggingFaceFolder::find(const std::string& name) const {
  std::vector<std::string> candidates = {name};
  for (const auto prefix : kPrefixes) {
    if (name.starts_with(prefix)) candidates.push_back(name.substr(prefix.size()));
    candidates.push_back(std::string(prefix) + name);
  }
  for (const auto& candidate : candidates)
    if (const auto it = tensors_.find(candidate); it != tensors_.end()) return it->second;
  return {};
}

HuggingFaceFolder::Found HuggingFaceFolder::find_checked(const ParameterSpec& parameter) const {
  const Found found = find(parameter.name);
  if (!found.tensor)
    input_error("{}: tensor '{}' is missing{}", weights_, parameter.name,
                parameter.name == kHead ? "; if the model uses its embedding there, config.json must say "
                                          "\"tie_word_embeddings\": true"
                                        : "");
  const std::string where = fmt::format("{}: tensor '{}'", found.file->path().string(), found.tensor->name);
  if (!is_weight_type(found.tensor->type))
    input_error("{} is {}; weights are read from F32, BF16 and F16 only", where, name_of(found.tensor->type));
  std::vector<int64_t> expected = parameter.shape;
  if (parameter.transposed_on_disk) std::reverse(expected.begin(), expected.end());
  if (found.tensor->shape != expected)
    input_error("{} has shape {}, config.json makes it {}", where, describe_shape(found.tensor->shape),
                describe_shape(expected));
  return found;
}

TensorType HuggingFaceFolder::type_of(const ParameterSpec& parameter) const {
  return find_checked(parameter).tensor->type;
}

void HuggingFaceFolder::read(const ParameterSpec& parameter, int64_t begin, std::span<float> values) const {
  const auto [file, tensor] = find_checked(parameter);
  if (!parameter.transposed_on_disk) return file->read(*tensor, begin, values);

  // Ours is [output, input], the file's [input, output]. Each row of the file gives one column of what is
  // wanted; several at a time fill cache lines.
  const int64_t outputs = parameter.shape[0], inputs = parameter.shape[1];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  require(begin >= 0 && end <= outputs * inputs, "elements {} to {} of parameter '{}'", begin, end,
          parameter.name);
  if (values.empty()) return;
  const int64_t first = begin / inputs, last = (end - 1) / inputs;
  constexpr int64_t kRows = 32;
  const int64_t width = last - first + 1;
  std::vector<float> rows(static_cast<size_t>(std::min(kRows, inputs) * width));
  for (int64_t row = 0; row < inputs; row += kRows) {
    const int64_t count = std::min(kRows, inputs - row);
    if (width == outputs) {
      file->read(*tensor, row * outputs, std::span(rows).first(static_cast<size_t>(count * width)));
    } else {
      for (int64_t i = 0; i < count; ++i)
        file->read(*tensor, (row + i) * outputs + first,
                   std::span(rows).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width)));
    }
    for (int64_t o = 0; o < width; ++o) {
      const int64_t to = (first + o) * inputs + row - begin;  // among what is wanted
      const int64_t from = std::max<int64_t>(0, -to), past = std::min(count, end - begin - to);
      for (int64_t i = from; i < past; ++i)
        values[static_cast<size_t>(to + i)] = rows[static_cast<size_t>(i * width + o)];
    }
  }
}

void HuggingFaceFolder::check(std::span<const ParameterSpec> parameters) const {
  std::set<const StoredTensor*> used;
  for (const auto& parameter : parameters) used.insert(find_checked(parameter).tensor);
  std::vector<std::string> unused;
  for (const auto& [name, found] : tensors_) {
    if (used.contains(found.tensor) || is_derived(name, config_.architecture)) continue;
    if (name == kHead && config_.tie_word_embeddings)
      warn_of_untied_head(found);
    else
      unused.push_back(name);
  }
  if (unused.empty()) return;
  constexpr size_t kShown = 8;
  const size_t shown = std::min(unused.size(), kShown);
  log_warning("{}: {} tensors are no part of this model and are not used: {}{}", weights_, unused.size(),
              fmt::join(unused.begin(), unused.begin() + static_cast<int64_t>(shown), ", "),
              unused.size() > shown ? ", ..." : "");
}

void HuggingFaceFolder::warn_of_untied_head(const Found& head) const {
  Found embedding = find("model.embed_tokens.weight");
  if (!embedding.tensor) embedding = find("transformer.wte.weight");
  bool same =
      embedding.tensor && embedding.tensor->shape == head.tensor->shape && is_weight_type(head.tensor->type);
  constexpr int64_t kComparedElements = int64_t{1} << 20;
  std::vector<float> a, b;
  for (int64_t begin = 0; same && begin < head.tensor->count(); begin += kComparedElements) {
    const auto n = static_cast<size_t>(std::min(kComparedElements, head.tensor->count() - begin));
    a.resize(n);
    b.resize(n);
    head.file->read(*head.tensor, begin, a);
    embedding.file->read(*embedding.tensor, begin, b);
    same = a == b;
  }
  if (!same)
    log_warning(
        "{}: '{}' differs from the embedding, but config.json ties them: the embedding is used for both",
        head.file->path().string(), kHead);
}

}  // namespace trainer
