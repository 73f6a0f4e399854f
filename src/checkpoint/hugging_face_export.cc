#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/hugging_face.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kExportedElements = int64_t{1} << 22;  // elements read at a time

// A folder made beside its final name; without `commit` it is removed again.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(fs::absolute(path).lexically_normal()) {
    if (!path_.has_filename()) path_ = path_.parent_path();
    if (fs::exists(fs::symlink_status(path_)) && !(fs::is_directory(path_) && fs::is_empty(path_)))
      input_error("{}: is there already; nothing is overwritten", path.string());
    temporary_ = path_;
    temporary_ += fmt::format(".tmp-{}", ::getpid());
    fs::create_directories(temporary_);
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  fs::path operator/(const std::string& name) const { return temporary_ / name; }
  void commit() {
    fs::rename(temporary_, path_);
    temporary_.clear();
    sync_directory(path_.parent_path());
  }

 private:
  fs::path path_, temporary_;
};

struct ExportTensor {
  const ParameterSpec* parameter;
  TensorDeclaration declaration;
  uint64_t bytes;
};

std::vector<std::vector<ExportTensor>> divide_into_shards(const ModelSource& source,
                                                          std::span<const ParameterSpec> parameters,
                                                          const ExportOptions& options) {
  std::vector<std::vector<ExportTensor>> shards(1);
  uint64_t shard_bytes = 0;
  for (const auto& parameter : parameters) {
    const TensorType type = options.type.value_or(source.type_of(parameter));
    std::vector<int64_t> shape = parameter.shape;
    if (parameter.transposed_on_disk) std::reverse(shape.begin(), shape.end());
    const uint64_t bytes = static_cast<uint64_t>(parameter.count()) * size_of(type);
    if (!shards.back().empty() && shard_bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back({&parameter, {parameter.name, type, shape}, bytes});
    shard_bytes += bytes;
  }
  return shards;
}

void write_tensor(const ModelSource& source, const ParameterSpec& parameter, SafetensorsWriter& file) {
  std::vector<float> values;
  if (parameter.transposed_on_disk) {
    const auto outputs = static_cast<size_t>(parameter.shape[0]),
               inputs = static_cast<size_t>(parameter.shape[1]);
    values.resize(outputs * inputs);
    read_parameter(source, parameter, values);
    std::vector<float> row(outputs);
    for (size_t i = 0; i < inputs; ++i) {
      for (size_t o = 0; o < outputs; ++o) row[o] = values[o * inputs + i];
      file.write(row);
    }
    return;
  }
  for (int64_t begin = 0; begin < parameter.count(); begin += kExportedElements) {
    values.resize(static_cast<size_t>(std::min(kExportedElements, parameter.count() - begin)));
    source.read(parameter, begin, values);
    file.write(values);
  }
}

// What transformers calls the type most weights have; it loads the model in that type.
const char* torch_name(TensorType type) {
  return type == TensorType::kBF16 ? "bfloat16" : type == TensorType::kF16 ? "float16" : "float32";
}

void write_config(const ModelConfig& config, TensorType type, const fs::path& path) {
  Json json = model_config_to_hugging_face(config);
  json[json.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(type);
  write_file_atomically(path, json.dump(2) + "\n");
}

void copy_tokenizer(const std::string& tokenizer, const NewFolder& folder) {
  if (tokenizer.empty() || tokenizer == "byte") return;
  if (!fs::exists(tokenizer)) input_error("{}: no such tokenizer", tokenizer);
  const bool is_folder = fs::is_directory(tokenizer);
  const fs::path source = is_folder ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
  const auto copy = [&](const char* name) {
    if (!fs::exists(source / name)) return false;
    write_file_atomically(folder / name, read_file(source / name));
    return true;
  };
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"})
    copy(name);
  if (!is_folder) {  // a vocabulary beside it need not be this one
    const bool json = fs::path(tokenizer).extension() == ".json";
    write_file_atomically(folder / (json ? "tokenizer.json" : "tokenizer.model"), read_file(tokenizer));
    return;
  }
  for (const char* name : {"vocab.json", "merges.txt", "generation_config.json"}) copy(name);
  const bool json = copy("tokenizer.json"), model = copy("tokenizer.model");
  if (!json && !model) input_error("{}: holds neither tokenizer.json nor tokenizer.model", tokenizer);
}

}  // namespace

void save_hugging_face(const ModelSource& source, std::span<const ParameterSpec> parameters,
                       const fs::path& path, const ExportOptions& options) {
  require(options.max_shard_bytes > 0 && !parameters.empty(), "an export without parameters or room");
  try {
    NewFolder folder(path);
    const auto shards = divide_into_shards(source, parameters, options);
    Json map = Json::object();
    uint64_t total = 0;
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name = shards.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      std::vector<TensorDeclaration> declarations;
      for (const auto& tensor : shards[s]) {
        declarations.push_back(tensor.declaration);
        map[tensor.declaration.name] = name;
        total += tensor.bytes;
      }
      SafetensorsWriter file(folder / name, declarations);
      for (const auto& tensor : shards[s]) write_tensor(source, *tensor.parameter, file);
      file.commit();
    }
    if (shards.size() > 1)
      write_file_atomically(folder / "model.safetensors.index.json",
                            Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
    const auto& tensors = shards.front();
    const auto largest = std::max_element(tensors.begin(), tensors.end(),
                                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    write_config(source.config(), largest->declaration.type, folder / "config.json");
    copy_tokenizer(options.tokenizer, folder);
    folder.commit();
  } catch (const fs::filesystem_error& e) {
    run_error("cannot write the model folder {}: {}", path.string(), e.what());
  }
}

}  // namespace trainer
