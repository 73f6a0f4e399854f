#include "data/byte_tokenizer.h"
#include "data/indexed_dataset.h"
#include "trainer/dataset.h"

namespace trainer {

int64_t write_byte_dataset(const std::string& prefix, const std::vector<std::string>& documents) {
  const ByteTokenizer tokenizer;
  IndexedDatasetWriter writer(prefix, tokenizer.vocabulary_size(), tokenizer.eod());
  int64_t tokens = 0;
  for (const std::string& document : documents) {
    const auto ids = tokenizer.encode(document);
    if (writer.add_document(ids)) tokens += static_cast<int64_t>(ids.size()) + 1;
  }
  writer.finish();
  return tokens;
}

}  // namespace trainer
