#include "checkpoint/model_source.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/on_threads.h"
#include "checkpoint/checkpoint_layout.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/training_checkpoint.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kResolvedConfig[] = "resolved_config.json";
constexpr char kCheckpointFolder[] = "checkpoints";
constexpr int64_t kReadAtOnce = int64_t{1} << 20;  // elements, by one thread

class CheckpointSource : public ModelSource {
 public:
  explicit CheckpointSource(const fs::path& directory) : reader_(directory) {
    manifest_ = (directory / kManifestFile).string();
    const auto model = reader_.state().find("model");
    if (model == reader_.state().end())
      input_error("{}: its state does not say what model this is", manifest_);
    config_ = model_config_from_hugging_face(*model, manifest_ + ": state.model");
    find_tokenizer(fs::absolute(directory).lexically_normal());
  }

  TensorType type_of(const ParameterSpec& parameter) const override {
    const auto* shape = reader_.shape(parameter.name);
    if (!shape) input_error("{}: holds no tensor '{}'", manifest_, parameter.name);
    if (*shape != parameter.shape)
      input_error("{}: tensor '{}' has shape {}, its model config makes it {}", manifest_, parameter.name,
                  describe_shape(*shape), describe_shape(parameter.shape));
    return TensorType::kF32;
  }
  void read(const ParameterSpec& parameter, int64_t begin, std::span<float> values) const override {
    type_of(parameter);
    reader_.read(parameter.name, begin, values);
  }

 private:
  // RUN/checkpoints/step_00000010 lies in a run directory whose resolved config names the tokenizer.
  void find_tokenizer(const fs::path& directory) {
    const fs::path run = directory.parent_path().parent_path(), file = run / kResolvedConfig;
    if (!fs::exists(file)) return;
    const Json config = parse_json_file(file.string());
    const auto data = config.find("data");
    if (data == config.end()) return;
    tokenizer_ = json_string(*data, "tokenizer", file.string() + ": data", "");
    // A relative path was relative to where the run was started from.
    if (!tokenizer_.empty() && tokenizer_ != "byte" && !fs::exists(tokenizer_) &&
        fs::exists(run / tokenizer_))
      tokenizer_ = (run / tokenizer_).string();
  }

  CheckpointReader reader_;
  std::string manifest_;
};

std::unique_ptr<ModelSource> newest_checkpoint(const fs::path& root) {
  const auto found = find_latest_checkpoint(root);
  if (!found) input_error("{}: holds no checkpoint yet", root.string());
  log_info("reading {}", found->string());
  return std::make_unique<CheckpointSource>(*found);
}

}  // namespace

void ModelSource::check(std::span<const ParameterSpec> parameters) const {
  for (const auto& parameter : parameters) type_of(parameter);
}

std::unique_ptr<ModelSource> open_model_source(const fs::path& path) {
  if (!fs::is_directory(path)) input_error("{}: no such folder", path.string());
  const fs::path folder = path.has_filename() ? path : path.parent_path();  // "a/" is "a"
  if (fs::exists(folder / kManifestFile)) return std::make_unique<CheckpointSource>(folder);
  if (fs::is_directory(folder / kCheckpointFolder)) return newest_checkpoint(folder / kCheckpointFolder);
  if (!list_checkpoints(folder, "").empty()) return newest_checkpoint(folder);
  if (fs::exists(folder / "config.json")) return std::make_unique<HuggingFaceFolder>(folder);
  input_error(
      "{}: neither a Hugging Face model folder (config.json), nor a run directory (checkpoints/), nor a "
      "training "
      "checkpoint ({})",
      path.string(), kManifestFile);
}

void read_parameter(const ModelSource& source, const ParameterSpec& parameter, std::span<float> values) {
  require(static_cast<int64_t>(values.size()) == parameter.count(), "{} values for parameter '{}' of {}",
          values.size(), parameter.name, parameter.count());
  if (parameter.replicated()) return source.read(parameter, 0, values);
  // A transposed tensor is read file row by file row whatever part is wanted: all at once.
  std::vector<float> whole;
  if (parameter.transposed_on_disk) {
    whole.resize(static_cast<size_t>(parameter.logical_count()));
    source.read(parameter, 0, whole);
  }
  for_each_held_run(parameter, [&](int64_t from, int64_t to, int64_t count) {
    const auto part = values.subspan(static_cast<size_t>(to), static_cast<size_t>(count));
    if (whole.empty())
      source.read(parameter, from, part);
    else
      std::copy_n(whole.begin() + from, count, part.begin());
  });
}

void read_layer(const ModelSource& source, const Layer& layer, std::span<float> block, int64_t threads) {
  require(static_cast<int64_t>(block.size()) >= layer.block_size(),
          "a block of {} elements for a layer of {}", block.size(), layer.block_size());
  struct Piece {
    const ParameterSpec* parameter;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (const auto& parameter : layer.parameters()) {
    // What lies as it is wanted can be read from anywhere on.
    const bool divisible = parameter.replicated() && !parameter.transposed_on_disk;
    const int64_t all = parameter.count(), most = divisible ? kReadAtOnce : all;
    for (int64_t begin = 0; begin < all; begin += most)
      pieces.push_back({&parameter, begin, std::min(most, all - begin)});
  }
  on_threads(threads, std::ssize(pieces), [&](int64_t i) {
    const auto& [parameter, begin, count] = pieces[static_cast<size_t>(i)];
    const auto values =
        block.subspan(static_cast<size_t>(parameter->offset + begin), static_cast<size_t>(count));
    if (count == parameter->count()) return read_parameter(source, *parameter, values);
    source.read(*parameter, begin, values);
  });
}

std::vector<ParameterSpec> parameters_of(const Model& model) {
  std::vector<ParameterSpec> all;
  for (int i = 0; i < model.layer_count(); ++i) {
    const auto& layer = model.layer(i).parameters();
    all.insert(all.end(), layer.begin(), layer.end());
  }
  return all;
}

std::string describe_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace trainer
