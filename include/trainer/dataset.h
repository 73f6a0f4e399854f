// Datasets for training, made by a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// Writes PREFIX.bin and PREFIX.idx, what a config with data.tokenizer "byte" and data.data_path PREFIX trains
// on: one token a byte, and an end after every document. Empty documents are left out. Replaces an older
// dataset of that name. Returns the tokens written, ends included. Throws std::exception when the files
// cannot be made.
int64_t write_byte_dataset(const std::string& prefix, const std::vector<std::string>& documents);

}  // namespace trainer
