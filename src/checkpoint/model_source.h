// Where the weights of a model come from: a Hugging Face folder, or a training checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/layer.h"

namespace trainer {

// Every method throws InputError naming file and tensor. Any number of threads may read at once.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  const ModelConfig& config() const { return config_; }
  // "byte", a file or a folder, for load_tokenizer; "": unknown.
  const std::string& tokenizer() const { return tokenizer_; }

  // How the tensor is stored; its presence and shape are checked.
  virtual TensorType type_of(const ParameterSpec& parameter) const = 0;
  // Elements [begin, begin + values.size()) of `parameter`, in this program's layout.
  virtual void read(const ParameterSpec& parameter, int64_t begin, std::span<float> values) const = 0;
  // That each of the model's parameters (all of them) is there, with its shape and in a type that weights can
  // have. Tensors that belong to none of them are warned of. Reads no weights.
  virtual void check(std::span<const ParameterSpec> parameters) const;

 protected:
  ModelConfig config_;
  std::string tokenizer_;
};

// `path`: a Hugging Face model folder, a run directory (its newest good checkpoint), a folder of checkpoints,
// or one checkpoint.
std::unique_ptr<ModelSource> open_model_source(const std::filesystem::path& path);

// What is held here of it: [parameter.count()].
void read_parameter(const ModelSource& source, const ParameterSpec& parameter, std::span<float> values);
// All parameters of `layer` into its flat block [layer.block_size()]; the padding between them is left alone.
// `source` is read by so many threads at once.
void read_layer(const ModelSource& source, const Layer& layer, std::span<float> block, int64_t threads = 1);

// Every parameter of the model, layer by layer.
std::vector<ParameterSpec> parameters_of(const Model& model);

// "[2, 3]", for messages.
std::string describe_shape(std::span<const int64_t> shape);

}  // namespace trainer
