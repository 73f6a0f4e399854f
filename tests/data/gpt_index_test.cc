#include "data/gpt_index.h"

#include <algorithm>
#include <numeric>

#include "base/json.h"
#include "data/blended_dataset.h"
#include "data/gpt_dataset.h"
#include "dataset_files.h"

namespace trainer {
namespace {

using namespace trainer::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What Megatron-LM's own code gave for a dataset of ten documents.
const Json& golden() {
  static const Json json = parse_json_file(TEST_DATA "/megatron_dataset_golden.json");
  return json;
}

template <class T>
std::vector<T> list(const Json& json) {
  return json.get<std::vector<T>>();
}

class MegatronGolden : public ::testing::Test {
 protected:
  MegatronGolden() {
    put_file(folder_ / "d.idx", from_hex(golden()["idx_hex"].get<std::string>()));
    put_file(folder_ / "d.bin", from_hex(golden()["bin_hex"].get<std::string>()));
    dataset_ = std::make_shared<const IndexedDataset>(folder_ / "d");
  }

  TemporaryFolder folder_;
  std::shared_ptr<const IndexedDataset> dataset_;
};

TEST_F(MegatronGolden, ReaderAndWriter) {
  const auto documents = list<std::vector<int32_t>>(golden()["docs"]);
  ASSERT_EQ(dataset_->sequences(), static_cast<int64_t>(documents.size()));
  IndexedDatasetWriter writer(folder_ / "again", 100, std::nullopt);
  for (size_t i = 0; i < documents.size(); ++i) {
    EXPECT_EQ(dataset_->length(static_cast<int64_t>(i)), golden()["doc_lengths"][i].get<int64_t>());
    EXPECT_EQ(dataset_->read(static_cast<int64_t>(i)), documents[i]);
    writer.add_document(documents[i]);
  }
  writer.finish();
  EXPECT_EQ(to_hex(read_file(folder_ / "again.bin")), golden()["bin_hex"].get<std::string>());
  EXPECT_EQ(to_hex(read_file(folder_ / "again.idx")), golden()["idx_hex"].get<std::string>());
}

TEST_F(MegatronGolden, EveryIndexAndEverySample) {
  ASSERT_EQ(golden()["gpt_cases"].size(), 7u);
  for (const Json& expected : golden()["gpt_cases"]) {
    SCOPED_TRACE(expected["num_samples"].dump() + " samples, seed " + expected["seed"].dump());
    GptDatasetConfig config;
    config.sequence_length = expected["seq"].get<int64_t>();
    config.seed = expected["seed"].get<uint32_t>();
    if (!expected["num_samples"].is_null()) config.num_samples = expected["num_samples"].get<int64_t>();
    config.drop_last = expected["drop_last"].get<bool>();
    config.extra_token = expected["extra"].get<bool>();
    const SequenceRange range{expected["doc_range"][0].get<int64_t>(),
                              expected["doc_range"][1].get<int64_t>()};
    const GptDataset gpt(dataset_, range, config);

    EXPECT_EQ(gpt.document_index(), list<int32_t>(expected["document_index"]));
    const auto marks = list<std::vector<int32_t>>(expected["sample_index"]);
    ASSERT_EQ(gpt.sample_index().size(), static_cast<int64_t>(2 * marks.size()));
    for (size_t i = 0; i < marks.size(); ++i)
      EXPECT_THAT(marks[i], ElementsAre(gpt.sample_index()[static_cast<int64_t>(2 * i)],
                                        gpt.sample_index()[static_cast<int64_t>(2 * i + 1)]));
    EXPECT_EQ(gpt.shuffle_index().narrow, list<uint32_t>(expected["shuffle_index"]));
    EXPECT_THAT(list<std::string>(expected["dtypes"]),
                ElementsAre("int32", gpt.sample_index().is_wide() ? "int64" : "int32",
                            gpt.shuffle_index().is_wide() ? "int64" : "uint32"));

    const auto samples = list<std::vector<int32_t>>(expected["samples"]);
    ASSERT_EQ(gpt.size(), static_cast<int64_t>(samples.size()));
    for (int64_t i = 0; i < gpt.size(); ++i) {
      const auto& text = samples[static_cast<size_t>(i)];
      EXPECT_EQ(gpt.text(i), text);
      Sample sample;
      gpt.fetch(i, sample);
      EXPECT_EQ(sample.valid_tokens, gpt.valid_tokens(i));
      for (size_t k = 0; k < sample.tokens.size(); ++k) {
        EXPECT_EQ(sample.tokens[k], std::max(text[k], 0));
        const bool labelled = k + 1 < text.size() && text[k + 1] >= 0;
        EXPECT_EQ(sample.labels[k], labelled ? text[k + 1] : kIgnoredLabel);
      }
    }
  }
}

TEST_F(MegatronGolden, Blends) {
  for (const Json& expected : golden()["blend"]) {
    const BlendIndex index =
        build_blend_index(list<double>(expected["weights"]), expected["size"].get<int64_t>());
    EXPECT_EQ(index.dataset, list<int16_t>(expected["dataset_index"]));
    EXPECT_EQ(index.sample, list<int64_t>(expected["dataset_sample_index"]));
  }
  for (const Json& expected : golden()["blend_exhaustive"]) {
    const BlendIndex index = build_exhaustive_blend_index(list<int64_t>(expected["sizes"]));
    EXPECT_EQ(index.dataset, list<int16_t>(expected["dataset_index"]));
    EXPECT_EQ(index.sample, list<int64_t>(expected["dataset_sample_index"]));
  }
}

TEST_F(MegatronGolden, Shuffles) {
  for (const Json& expected : golden()["randomstate_shuffle"]) {
    RandomState random(expected["seed"].get<uint32_t>());
    for (const char* turn : {"first", "second"}) {
      std::vector<int32_t> values(expected["n"].get<size_t>());
      std::iota(values.begin(), values.end(), 0);
      random.shuffle(std::span(values));
      EXPECT_EQ(values, list<int32_t>(expected[turn]));
    }
  }
}

TEST_F(MegatronGolden, Splits) {
  for (const Json& expected : golden()["split"]) {
    const SplitMatrix matrix = parse_split(expected["split"].get<std::string>());
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(matrix[i].has_value(), !expected["matrix"][i].is_null());
      const SequenceRange range = split_range(matrix, static_cast<Split>(i), 1000);
      if (!matrix[i]) {
        EXPECT_EQ(range.size(), 0);
        continue;
      }
      EXPECT_EQ(matrix[i]->begin, expected["matrix"][i][0].get<double>());
      EXPECT_EQ(matrix[i]->end, expected["matrix"][i][1].get<double>());
      EXPECT_THAT(list<int64_t>(expected["bounds_n1000"][i]), ElementsAre(range.begin, range.end));
    }
  }
}

// Values of numpy.random.RandomState(7).randint(0, 10**12 + 1), and of one more 32-bit draw after them.
TEST(RandomState, DrawsBeyond32Bits) {
  RandomState random(7);
  for (const uint64_t expected :
       {752595690692u, 108744157686u, 291964244179u, 650496783975u, 396459895993u, 611018672663u})
    EXPECT_EQ(random.interval(1000000000000u), expected);
  EXPECT_EQ(random.interval(0xffffffffu), 2152296008u);
  EXPECT_EQ(random.interval(0), 0u);
}

TEST(RandomState, ShuffleDoesNotDependOnTheWidth) {
  std::vector<uint32_t> narrow(1000);
  std::vector<int64_t> wide(1000);
  std::iota(narrow.begin(), narrow.end(), 0u);
  std::iota(wide.begin(), wide.end(), 0);
  RandomState(7).shuffle(std::span(narrow));
  RandomState(7).shuffle(std::span(wide));
  EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), wide.begin(), wide.end()));
  // numpy: RandomState(7).shuffle(numpy.arange(1000))
  EXPECT_THAT(std::vector(wide.begin(), wide.begin() + 10),
              ElementsAre(778, 334, 271, 802, 216, 408, 812, 94, 487, 170));
  int64_t moment = 0;
  for (int64_t i = 0; i < 1000; ++i) moment += i * wide[static_cast<size_t>(i)];
  EXPECT_EQ(moment, 246202311);
}

TEST(Split, HalvesGoToTheEvenSequence) {
  const auto bounds = [](const char* split, int64_t sequences) {
    const SplitMatrix matrix = parse_split(split);
    const auto train = split_range(matrix, Split::kTrain, sequences),
               valid = split_range(matrix, Split::kValid, sequences);
    EXPECT_EQ(train.begin, 0);
    EXPECT_EQ(valid.end, split_range(matrix, Split::kTest, sequences).size() ? valid.end : sequences);
    return train.end;
  };
  EXPECT_EQ(bounds("1,1", 5), 2);  // 2.5
  EXPECT_EQ(bounds("1,1", 7), 4);  // 3.5
  EXPECT_EQ(bounds("98,2", 25), 24);
  EXPECT_EQ(bounds("8,1,1", 25), 20);
  EXPECT_EQ(bounds("969,30,1", 50), 48);
}

TEST(Split, BadTextIsRefused) {
  for (const char* text : {"", "a", "1,", ",1", "1,2,3,4", "0,0,0", "-1,2", "1;2", "nan", "1e999,1"})
    EXPECT_THAT(input_error_of([&] { parse_split(text); }), HasSubstr("split")) << text;
  EXPECT_FALSE(parse_split("0, 1, 0")[0].has_value());
}

TEST(SampleCount, PartialSampleIsCountedInFloat32) {
  struct {
    int64_t tokens, length, exact, counted;
  } const cases[] = {{57, 8, 8, 8},
                     {16777217, 1, 16777217, 16777216},
                     {16777219, 2, 8388610, 8388610},
                     {16777221, 3, 5592407, 5592407},
                     {100000001, 7, 14285715, 14285714}};
  for (const auto& c : cases) {
    EXPECT_EQ(sample_count(c.tokens + 1, c.length, 1, false), c.counted);
    EXPECT_EQ((c.tokens + c.length - 1) / c.length, c.exact);
    EXPECT_EQ(sample_count(c.tokens + 1, c.length, 1, true), c.tokens / c.length);
  }
  EXPECT_EQ(sample_count(2147483653, 2048, 1, true), 1048576);
}

// The loop of the definition instead of the division.
TEST(EpochPlan, EqualsTheLoop) {
  for (const int64_t tokens : {1, 2, 7, 57, 1000})
    for (const int64_t length : {1, 4, 8, 100})
      for (const int64_t extra : {0, 1})
        for (int64_t samples = 1; samples < 60; ++samples) {
          int64_t epochs = 1;
          while (epochs * tokens < samples * length + extra) ++epochs;
          const EpochPlan plan = plan_epochs(tokens, length, extra, samples);
          ASSERT_EQ(plan.epochs, epochs);
          if (epochs > 1) {
            const int64_t rest = samples - plan.samples_before_final;
            ASSERT_GE(rest, 0);
            ASSERT_EQ(plan.separate_final,
                      rest < static_cast<int64_t>(0.8 * static_cast<double>((tokens - extra) / length)));
          }
        }
  EXPECT_THAT(input_error_of([] { plan_epochs(10, 8, 1, 0); }), HasSubstr("0 samples"));
  EXPECT_THAT(input_error_of([] { plan_epochs(10, 8, 1, int64_t{1} << 61); }),
              HasSubstr("samples of 8 tokens"));
}

// Every sample is a slice of the shuffled sequences laid end to end; both widths say so.
TEST(SampleIndex, EqualsSlicesOfOneFlatArray) {
  RandomState random(3);
  for (int round = 0; round < 300; ++round) {
    const auto sequences = static_cast<int64_t>(1 + random.interval(12));
    const int64_t first = static_cast<int64_t>(random.interval(5)),
                  extra = static_cast<int64_t>(random.interval(1));
    const auto length = static_cast<int64_t>(1 + random.interval(9));
    std::vector<int32_t> lengths;
    for (int64_t i = 0; i < sequences; ++i) lengths.push_back(static_cast<int32_t>(random.interval(7)));
    EpochPlan plan;
    plan.epochs = static_cast<int64_t>(1 + random.interval(2));
    const auto documents = build_document_index({first, first + sequences}, plan, random);
    std::vector<std::pair<int64_t, int64_t>> flat;  // (position, offset) of every token
    for (size_t p = 0; p < documents.size(); ++p)
      for (int64_t k = 0; k < lengths[static_cast<size_t>(documents[p] - first)]; ++k)
        flat.emplace_back(static_cast<int64_t>(p), k);
    const auto tokens = static_cast<int64_t>(flat.size());
    if (tokens < length + extra) continue;
    const int64_t count = sample_count(tokens, length, extra, true);
    const auto marks = build_sample_index<int32_t>(lengths, first, documents, length, extra, count);
    const auto wide = build_sample_index<int64_t>(lengths, first, documents, length, extra, count);
    ASSERT_TRUE(std::equal(marks.begin(), marks.end(), wide.begin(), wide.end()));
    ASSERT_EQ(marks.size(), static_cast<size_t>(2 * (count + 1)));
    for (int64_t i = 0; i <= count; ++i) {
      const int64_t position = marks[static_cast<size_t>(2 * i)],
                    offset = marks[static_cast<size_t>(2 * i + 1)];
      // Tokens before the mark: those of whole sequences, and the offset.
      int64_t before = offset;
      for (int64_t p = 0; p < position; ++p)
        before += lengths[static_cast<size_t>(documents[static_cast<size_t>(p)] - first)];
      ASSERT_EQ(before, i * length);
      if (extra == 1 && i > 0) {
        ASSERT_EQ(flat[static_cast<size_t>(i * length)], std::pair(position, offset));
      }
    }
  }
}

TEST(ShuffleIndex, PartsStayApart) {
  RandomState random(1);
  const auto index = build_shuffle_index<uint32_t>(40, 100, random);
  auto sorted = index;
  std::sort(sorted.begin(), sorted.begin() + 40);
  std::sort(sorted.begin() + 40, sorted.end());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_FALSE(std::is_sorted(index.begin(), index.begin() + 40));
}

}  // namespace
}  // namespace trainer
