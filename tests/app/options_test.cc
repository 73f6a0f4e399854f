#include "app/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_folder.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

Options parse(const std::vector<std::string>& words) {
  return {words, {"--from", "--count", "--rate"}, {"--help"}};
}

std::string refusal(const std::vector<std::string>& words) {
  return message_of([&] {
    const Options options = parse(words);
    options.required("--from");
    options.integer("--count", 1, 0);
    options.number("--rate", 1, 0);
  });
}

TEST(Options, ReadsBothForms) {
  const Options options = parse({"--from", "--odd name", "--count=3", "--help", "--rate", "0.25"});
  EXPECT_EQ(options.required("--from"), "--odd name");
  EXPECT_EQ(options.integer("--count", 1, 0), 3);
  EXPECT_EQ(options.number("--rate", 1, 0), 0.25);
  EXPECT_TRUE(options.has("--help"));
  EXPECT_EQ(parse({}).integer("--count", 7, 0), 7);
  EXPECT_EQ(parse({"--from="}).required("--from"), "");
}

TEST(Options, RefusesWhatIsWrong) {
  EXPECT_THAT(refusal({}), HasSubstr("--from is missing"));
  EXPECT_THAT(refusal({"--form", "a"}), HasSubstr("did you mean --from?"));
  EXPECT_THAT(refusal({"word"}), HasSubstr("unknown argument 'word'"));
  EXPECT_THAT(refusal({"--from"}), HasSubstr("--from needs a value"));
  EXPECT_THAT(refusal({"--help=1"}), HasSubstr("--help takes no value"));
  EXPECT_THAT(refusal({"--from", "a", "--from", "b"}), HasSubstr("given twice"));
  for (const char* bad : {"", "x", "1x", "-1", "1.5", "99999999999999999999"})
    EXPECT_THAT(refusal({"--from", "a", "--count", bad}), HasSubstr("--count: expected a whole number"))
        << bad;
  for (const char* bad : {"", "x", "-0.5", "nan", "inf"})
    EXPECT_THAT(refusal({"--from", "a", "--rate", bad}), HasSubstr("--rate: expected a number")) << bad;
}

ConfigArguments parse_with_config(const std::vector<std::string>& words) {
  return read_config_arguments(words, {"--from"}, {"--again"});
}

TEST(ConfigArguments, PathOverridesAndOptionsInAnyOrder) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"c.json", "--set", "a.b=1", "--from", "here", "--set=c.d=x", "--again"},
           {"--again", "--set", "a.b=1", "--set", "c.d=x", "--from", "here", "c.json"},
           {"--from=here", "--set=a.b=1", "c.json", "--again", "--set", "c.d=x"}}) {
    const ConfigArguments a = parse_with_config(words);
    EXPECT_EQ(a.config, "c.json");
    EXPECT_THAT(a.overrides, ::testing::ElementsAre("a.b=1", "c.d=x"));
    EXPECT_EQ(a.options.required("--from"), "here");
    EXPECT_TRUE(a.options.has("--again"));
  }
}

TEST(ConfigArguments, NothingIsLeftUnexplained) {
  const auto refused = [](const std::vector<std::string>& words) {
    return message_of([&] { parse_with_config(words); });
  };
  EXPECT_THAT(refused({"--again"}), HasSubstr("no config given"));
  EXPECT_THAT(refused({"one.json", "two.json"}), HasSubstr("unknown argument 'two.json'"));
  EXPECT_THAT(refused({"one.json", "--agian"}), HasSubstr("did you mean --again"));
  EXPECT_THAT(refused({"one.json", "--set"}), HasSubstr("--set needs"));
  EXPECT_THAT(refused({"one.json", "--from"}), HasSubstr("--from needs a value"));
}

TEST(ConfigArguments, SeveralWhereSeveralAreAsked) {
  const std::vector<std::string> words = {"--set", "a.b=1",    "one.json", "--from",
                                          "here",  "two.json", "--again"};
  const ConfigArguments a = read_config_arguments(words, {"--from"}, {"--again"}, true);
  EXPECT_THAT(a.configs, ::testing::ElementsAre("one.json", "two.json"));
  EXPECT_EQ(a.config, "one.json");
  EXPECT_EQ(a.options.required("--from"), "here");
  EXPECT_THAT(message_of([&] { read_config_arguments({}, {}, {}, true); }), HasSubstr("no config given"));
}

}  // namespace
}  // namespace trainer
