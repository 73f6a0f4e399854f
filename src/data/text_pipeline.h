// Text files to an indexed dataset: read, encoded by several threads, written in the order of the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/text_reader.h"
#include "data/tokenizer.h"

namespace trainer {

// Documents longer than this are encoded in parts of at most as many bytes, cut by `document_cut`.
inline constexpr size_t kDocumentPartBytes = size_t{64} << 10;

struct TextPipelineOptions {
  std::vector<std::string> files;
  TextFormat format = TextFormat::kJsonLines;
  std::string json_key = "text";
  int workers = 1;
};

struct TextPipelineCounts {
  uint64_t bytes_read = 0;  // of the files
  uint64_t total_bytes = 0;
  uint64_t text_bytes = 0;  // of the documents' text
  uint64_t documents = 0;
  uint64_t empty_documents = 0;  // skipped
  uint64_t tokens = 0;           // end-of-document tokens included
};

// The tokens of a document or of a part of one, appended to `tokens`.
void encode_document(const Tokenizer& tokenizer, std::string_view text, bool continues,
                     std::vector<int32_t>& tokens);

// Adds the documents of all files to `writer` (`finish` is left to the caller). The tokens do not depend on
// `workers`; memory is bounded by a few batches a worker, whatever the size of the files. Documents without
// text are skipped. `progress` is called from the calling thread after each batch. Throws InputError naming
// file and line: of several faults always the first one.
TextPipelineCounts tokenize_files(const Tokenizer& tokenizer, const TextPipelineOptions& options,
                                  IndexedDatasetWriter& writer,
                                  const std::function<void(const TextPipelineCounts&)>& progress = {});

}  // namespace trainer
