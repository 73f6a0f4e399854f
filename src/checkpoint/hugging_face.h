// Hugging Face model folders: config.json, one model.safetensors or shards with an index, tokenizer files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_source.h"

namespace trainer {

// Weights are read from the files piece by piece when they are asked for, never as whole files, so that a
// rank may read the layers it holds. Tensors are found under the names that either base or causal-LM models
// save them with
// ("model." and "transformer." in front, or not).
//
// A folder whose config ties the embeddings may still hold an `lm_head.weight`: it is not used, and warned of
// by `check` when it differs from the embedding.
class HuggingFaceFolder : public ModelSource {
 public:
  explicit HuggingFaceFolder(const std::filesystem::path& folder);

  TensorType type_of(const ParameterSpec& parameter) const override;
  void read(const ParameterSpec& parameter, int64_t begin, std::span<float> values) const override;
  void check(std::span<const ParameterSpec> parameters) const override;

 private:
  struct Found {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };
  void open_shards(const std::filesystem::path& index);
  Found find(const std::string& name) const;
  Found find_checked(const ParameterSpec& parameter) const;
  void warn_of_untied_head(const Found& head) const;

  std::filesystem::path folder_;
  std::string weights_;  // the file that lists the tensors, for messages
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Found, std::less<>> tensors_;
};

struct ExportOptions {
  std::optional<TensorType> type;            // of every tensor; nullopt: as the source has it
  uint64_t max_shard_bytes = 5'000'000'000;  // several files when the weights take more
  std::string tokenizer;                     // a file, a folder, "byte" or "" (nothing to copy)
};

// Writes the model folder `folder`, which appears complete or not at all. Throws InputError when it exists
// already (an empty folder is none), RunError when it cannot be written.
void save_hugging_face(const ModelSource& source, std::span<const ParameterSpec> parameters,
                       const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace trainer
