#include <chrono>
#include <random>
#include <thread>

#include "base/json.h"
#include "data/bpe_tokenizer.h"
#include "data/utf8.h"
#include "dataset_files.h"

namespace trainer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string>;

const std::string kFolder = TEST_DATA "/tokenizer/";

// A tokenizer.json with the pieces of GPT-2; `model` continues the object of the model.
std::string file_text(const std::string& vocabulary, const std::string& merges, const std::string& model = "",
                      const std::string& added = "[]") {
  return R"({"version":"1.0","added_tokens":)" + added +
         R"(,"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)" +
         R"("post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" +
         vocabulary + R"(,"merges":)" + merges + model + "}}";
}

std::unique_ptr<Tokenizer> load_text(const std::string& text) {
  const TemporaryFolder folder;
  put_file(folder / "tokenizer.json", text);
  return load_tokenizer(folder / "tokenizer.json");
}

BpeTokenizer& family(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  auto& tokenizer = loaded[name];
  if (!tokenizer) tokenizer = load_tokenizer(kFolder + name + ".json");
  return dynamic_cast<BpeTokenizer&>(*tokenizer);
}

// Lowest rank first, leftmost of equals, one merge at a time over the whole list.
Ids merge_naively(const std::map<std::pair<int32_t, int32_t>, MergeTable::Merge>& merges, Ids tokens) {
  for (;;) {
    int32_t best_rank = std::numeric_limits<int32_t>::max(), joined = 0;
    size_t best = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = merges.find({tokens[i], tokens[i + 1]});
      if (found == merges.end() || found->second.rank >= best_rank) continue;
      best_rank = found->second.rank;
      joined = found->second.token;
      best = i;
    }
    if (best_rank == std::numeric_limits<int32_t>::max()) return tokens;
    tokens[best] = joined;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Cases, WholePieceLookupBeforeMerges) {
  const std::string vocabulary = R"({"a":0,"b":1,"c":2,"ab":3,"abc":4,"Ġ":5,"Ġab":6})";
  const std::string added = R"([{"id":7,"content":"<|eot|>","special":true,"normalized":false}])";
  for (const std::string merges : {R"(["a b"])", R"([["a","b"]])"}) {
    const auto whole = load_text(file_text(vocabulary, merges, R"(,"ignore_merges":true)", added));
    EXPECT_THAT(whole->encode("abc ab abcab"), ElementsAre(4, 6, 5, 3, 2, 3));
    EXPECT_THAT(whole->encode("abc<|eot|>abc", {.allow_special = true}), ElementsAre(4, 7, 4));
    EXPECT_THAT(whole->encode("ab  ab"), ElementsAre(3, 5, 6));
    const auto merged = load_text(file_text(vocabulary, merges, R"(,"ignore_merges":false)", added));
    EXPECT_THAT(merged->encode("abc ab abcab"), ElementsAre(3, 2, 5, 3, 5, 3, 2, 3));
    EXPECT_THAT(merged->encode("abc<|eot|>abc", {.allow_special = true}), ElementsAre(3, 2, 7, 3, 2));
    EXPECT_EQ(merged->vocabulary_size(), 8);
  }
}

TEST(Cases, MergePriority) {
  const auto tokenizer = load_text(file_text(R"({"a":0,"b":1,"c":2,"bc":3,"ab":4,"abc":5,"aa":6,"aaaa":8})",
                                             R"(["b c","a b","a bc","a a","aa aa"])"));
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(5));
  EXPECT_THAT(tokenizer->encode("aabc"), ElementsAre(0, 5));
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(6, 0));
  EXPECT_THAT(tokenizer->encode("aaaaa"), ElementsAre(8, 0));
  EXPECT_THAT(tokenizer->encode("abab"), ElementsAre(4, 4));
}

TEST(Cases, PreTokenSplits) {
  BpeTokenizer &gpt2 = family("gpt2"), &llama3 = family("llama3"), &qwen2 = family("qwen2");
  for (BpeTokenizer* each : {&gpt2, &llama3, &qwen2})
    EXPECT_EQ(each->pieces("a  b"), (Pieces{"a", " ", " b"}));

  EXPECT_EQ(gpt2.pieces("x = 12345678"), (Pieces{"x", " =", " 12345678"}));
  EXPECT_EQ(llama3.pieces("x = 12345678"), (Pieces{"x", " =", " ", "123", "456", "78"}));
  EXPECT_EQ(qwen2.pieces("x = 12345678"), (Pieces{"x", " =", " ", "1", "2", "3", "4", "5", "6", "7", "8"}));

  const std::string code = "def f():\n    return  x";
  EXPECT_EQ(gpt2.pieces(code), (Pieces{"def", " f", "():", "\n   ", " return", " ", " x"}));
  EXPECT_EQ(gpt2.pieces("DON'T don't"), (Pieces{"DON", "'", "T", " don", "'t"}));
  EXPECT_EQ(gpt2.pieces(" \n\n \t z"), (Pieces{" \n\n \t", " z"}));
  EXPECT_EQ(gpt2.pieces("a\u00A0b"), (Pieces{"a", "\u00A0", "b"}));
  for (BpeTokenizer* each : {&llama3, &qwen2}) {
    EXPECT_EQ(each->pieces(code), (Pieces{"def", " f", "():\n", "   ", " return", " ", " x"}));
    EXPECT_EQ(each->pieces("DON'T don't"), (Pieces{"DON", "'T", " don", "'t"}));
    EXPECT_EQ(each->pieces(" \n\n \t z"), (Pieces{" \n\n", " \t", " z"}));
    EXPECT_EQ(each->pieces("a\u00A0b"), (Pieces{"a", "\u00A0b"}));
  }

  const std::string numbers = "\u096B\u096C\u00BD\u2167";
  EXPECT_EQ(gpt2.pieces(numbers), (Pieces{numbers}));
  EXPECT_EQ(llama3.pieces(numbers), (Pieces{"\u096B\u096C\u00BD", "\u2167"}));
  EXPECT_EQ(qwen2.pieces(numbers), (Pieces{"\u096B", "\u096C", "\u00BD", "\u2167"}));

  EXPECT_EQ(qwen2.pieces("cafe\u0301"), (Pieces{"caf\u00E9"}));
  EXPECT_EQ(qwen2.encode("cafe\u0301"), qwen2.encode("caf\u00E9"));
  EXPECT_NE(llama3.encode("cafe\u0301"), llama3.encode("caf\u00E9"));
}

// What the tokenizers and regex packages for Python make of random texts; tokenizer/make_golden.py wrote it.
TEST(BpeTokenizer, AgreesWithHuggingFace) {
  const Json golden = parse_json_file(kFolder + "golden.json");
  ASSERT_GT(golden.size(), 200u);
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) {
    const BpeTokenizer& tokenizer = family(name);
    for (const Json& item : golden) {
      const auto text = item["text"].get<std::string>();
      std::vector<size_t> lengths;
      std::string joined;
      for (const std::string& piece : tokenizer.pieces(text)) {
        lengths.push_back(piece.size());
        joined += piece;
      }
      EXPECT_EQ(lengths, item[name]["pieces"].get<std::vector<size_t>>()) << name << " " << item["text"];
      EXPECT_EQ(joined, name == "qwen2" ? normalise_nfc(text) : text);
      EXPECT_EQ(tokenizer.encode(text), item[name]["ids"].get<Ids>()) << name << " " << item["text"];
    }
  }
}

TEST(BpeTokenizer, DecodesWhatItEncoded) {
  const Json golden = parse_json_file(kFolder + "golden.json");
  for (const std::string name : {"gpt2", "llama3"})
    for (const Json& item : golden) {
      const auto text = item["text"].get<std::string>();
      const auto tokens = family(name).encode(text);
      EXPECT_EQ(family(name).decode_bytes(tokens), text);
      EXPECT_EQ(count_text_bytes(family(name), tokens), text.size());
    }
}

TEST(BpeTokenizer, SpecialTokens) {
  const BpeTokenizer& tokenizer = family("llama3");
  const int32_t begin = 330, end = 331;
  EXPECT_EQ(tokenizer.bos(), begin);
  EXPECT_EQ(tokenizer.eod(), end);
  EXPECT_EQ(tokenizer.special(begin), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer.bytes(begin), std::nullopt);
  EXPECT_EQ(tokenizer.vocabulary_size(), 332);

  const std::string text = "a<|end_of_text|>";
  const auto plain = tokenizer.encode(text);
  EXPECT_THAT(plain, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer.decode(plain), text);
  const auto read = tokenizer.encode(text, {.allow_special = true, .add_special = true});
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0], begin);
  EXPECT_EQ(read[2], end);
  EXPECT_EQ(tokenizer.decode(read), "a");
  EXPECT_EQ(tokenizer.decode(read, false, true), "<|begin_of_text|>a<|end_of_text|>");
  EXPECT_EQ(count_text_bytes(tokenizer, read), 1u);
  EXPECT_THROW(tokenizer.bytes(332), InputError);
  EXPECT_THROW(tokenizer.decode(Ids{-1}), InputError);
}

TEST(BpeTokenizer, RolesFromTheConfigBesideIt) {
  const TemporaryFolder folder;
  put_file(folder / "tokenizer.json",
           file_text(R"({"a":0})", "[]", "", R"([{"id":1,"content":"<s>","special":true},
      {"id":2,"content":"</s>","special":true}])"));
  EXPECT_EQ(load_tokenizer(folder / "")->eod(), std::nullopt);
  put_file(folder / "tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"eos_token":"</s>"})");
  const auto tokenizer = load_tokenizer(folder / "");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_EQ(load_tokenizer(folder / "", {.eod = 1})->eod(), 1);
  EXPECT_THROW(load_tokenizer(folder / "", {.eod = 3}), InputError);
  put_file(folder / "tokenizer_config.json", R"({"eos_token":"<eos>"})");
  EXPECT_THROW(load_tokenizer(folder / ""), InputError);
}

TEST(BpeTokenizer, PrefixSpaceIsHeldBackInContinuations) {
  std::string text = file_text(R"({"a":0,"Ġ":1,"Ġa":2})", R"(["Ġ a"])");
  text.replace(text.find("\"add_prefix_space\":false"), 24, "\"add_prefix_space\":true");
  const auto tokenizer = load_text(text);
  EXPECT_TRUE(tokenizer->adds_space_prefix());
  EXPECT_THAT(tokenizer->encode("a a"), ElementsAre(2, 2));
  EXPECT_THAT(tokenizer->encode("a a", {.continues = true}), ElementsAre(0, 2));
  EXPECT_EQ(tokenizer->decode(Ids{2, 2}), "a a");
  EXPECT_EQ(tokenizer->decode(Ids{2, 2}, true), " a a");
  EXPECT_EQ(count_text_bytes(*tokenizer, Ids{2, 2}), 3u);
}

TEST(BpeTokenizer, InvalidBytesForDisplay) {
  const BpeTokenizer& tokenizer = family("gpt2");
  const auto tokens = tokenizer.encode("\U0001F999");
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokenizer.decode(std::span(tokens).first(3)), "\uFFFD");
  EXPECT_EQ(tokenizer.decode_bytes(std::span(tokens).first(3)), "\xF0\x9F\xA6");
  EXPECT_EQ(tokenizer.decode(tokens), "\U0001F999");
  EXPECT_THROW(tokenizer.encode("a\xFF"), InputError);
}

TEST(BpeTokenizer, RefusesWhatItDoesNotKnow) {
  const std::string good = file_text(R"({"a":0})", "[]");
  ASSERT_NO_THROW(load_text(good));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return input_error_of([&] { load_text(text); });
  };
  EXPECT_THAT(with(R"("type":"BPE")", R"("type":"WordPiece")"), HasSubstr("WordPiece"));
  EXPECT_THAT(with(R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})"), HasSubstr("Lowercase"));
  EXPECT_THAT(with(R"("post_processor":null)", R"("post_processor":{"type":"BertProcessing"})"),
              HasSubstr("BertProcessing"));
  EXPECT_THAT(with(R"("decoder":{"type":"ByteLevel"})", R"("decoder":{"type":"Metaspace"})"),
              HasSubstr("Metaspace"));
  EXPECT_THAT(
      with(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})", R"({"type":"Whitespace"})"),
      HasSubstr("Whitespace"));
  EXPECT_THAT(with(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})", "null"),
              HasSubstr("byte-level"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":[],"dropout":0.1)"), HasSubstr("dropout"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":[],"byte_fallback":true)"), HasSubstr("byte_fallback"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":[],"end_of_word_suffix":"</w>")"),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":[],"new_option":1)"), HasSubstr("new_option"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":["a b"])"), HasSubstr("'b'"));
  EXPECT_THAT(with(R"("merges":[])", R"("merges":["ab"])"), HasSubstr("not a pair"));
  EXPECT_THAT(with(R"({"a":0})", R"({"a":0,"b":0})"), HasSubstr("shares its id 0"));
  EXPECT_THAT(with(R"({"a":0})", R"({"a":-1})"), HasSubstr("-1"));
  EXPECT_THAT(with(R"("version":"1.0")", R"("version":"1.0","sampler":{})"), HasSubstr("sampler"));
  EXPECT_THAT(with("}}", "}"), HasSubstr("not valid JSON"));

  const auto tokenizer = load_text(good);
  EXPECT_THAT(input_error_of([&] { tokenizer->encode("ab"); }), HasSubstr("0x62"));
}

TEST(RegularExpression, RefusesWhatTwoDialectsReadDifferently) {
  for (const std::string pattern : {R"(\w+)", R"(\bx)", R"(\h)", "^x", "x$", R"(\p{N}{1,3}+)", "[a[b]]",
                                    "[a&&b]", "(?<n>a)", "(*UTF)a", R"(\u0041)", "a{,2}"})
    EXPECT_THROW(translate_pattern(pattern, "file"), InputError) << pattern;
  EXPECT_THROW(RegularExpression("(a", "file"), InputError);
  EXPECT_EQ(translate_pattern(R"([^\s\p{L}]+|\S?+|\p{L}+?)", "file"),
            R"([^\p{White_Space}\p{L}]+|\P{White_Space}?+|\p{L}+?)");
}

TEST(MergeTokens, EqualsOneMergeAtATime) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const auto letters = static_cast<int32_t>(2 + random() % 4);
    std::map<std::pair<int32_t, int32_t>, MergeTable::Merge> merges;
    int32_t next = letters;
    while (merges.size() < 12) {
      const std::pair<int32_t, int32_t> pair(random() % next, random() % next);
      if (merges.contains(pair)) continue;
      const auto rank = static_cast<int32_t>(merges.size());
      merges[pair] = {rank, next++};
    }
    MergeTable table(merges.size());
    for (const auto& [pair, merge] : merges) table.add(pair.first, pair.second, merge);
    for (const size_t length : {1u, 2u, 3u, 9u, 23u, 24u, 25u, 26u, 60u, 200u}) {
      Ids tokens(length);
      for (auto& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(letters));
      Ids merged = tokens;
      merge_tokens(table, merged);
      EXPECT_THAT(merged, ElementsAreArray(merge_naively(merges, tokens)));
    }
  }
}

TEST(BpeTokenizer, LongPiecesTakeNoQuadraticTime) {
  const auto tokenizer = load_text(
      file_text(R"({"a":0,"b":1,"aa":2,"ab":3,"aaaa":4,"Ġ":5,"ĠĠ":6})", R"(["a a","a b","aa aa","Ġ Ġ"])"));
  constexpr size_t kLength = 1 << 20;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->encode(std::string(kLength, 'a')).size(), kLength / 4);
  EXPECT_EQ(tokenizer->encode(std::string(kLength, ' ')).size(), kLength / 2);
  // Quadratic work would be 10^12 steps, hours; the bound leaves room for sanitizers on a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(BpeTokenizer, ManyThreadsAtOnce) {
  const BpeTokenizer& tokenizer = family("llama3");
  std::string text;
  const Json golden = parse_json_file(kFolder + "golden.json");
  for (const Json& item : golden) text += item["text"].get<std::string>();
  const Ids expected = tokenizer.encode(text);
  const BpeTokenizer& other = family("gpt2");
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        result = tokenizer.encode(text);
        other.encode("another tokenizer on the same thread");
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(BpeTokenizer, DocumentsMayBeCutBeforeWhiteSpace) {
  std::mt19937 random(3);
  std::string text;
  const std::vector<std::string> parts = {"word", " word", "\n", "\n\n", "  ",        ", ",
                                          ".\n",  "12",    "'s", " (x)", "caf\u00E9", "\t"};
  for (int i = 0; i < 3000; ++i) text += parts[random() % parts.size()];
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) {
    const Ids whole = family(name).encode(text);
    for (const size_t limit : {50u, 301u, 4096u}) {
      Ids cut;
      std::string_view left = text;
      while (!left.empty()) {
        const size_t size = left.size() > limit ? document_cut(left, limit) : left.size();
        const auto part =
            family(name).encode(left.substr(0, size), {.continues = left.size() != text.size()});
        cut.insert(cut.end(), part.begin(), part.end());
        left.remove_prefix(size);
      }
      EXPECT_EQ(cut, whole) << name << " " << limit;
    }
  }
}

}  // namespace
}  // namespace trainer::testing
