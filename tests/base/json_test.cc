#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/philox.h"

namespace trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "nothing was refused";
}

std::string parse_refusal(std::string_view text) {
  return refusal([&] { parse_json(text, "config.json"); });
}

TEST(Json, RefusesWhatIsNotStrictJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "{\"a\":1,}",
                           "[1,]",
                           "{\"a\":NaN}",
                           "{\"a\":Infinity}",
                           "{\"a\":-Infinity}",
                           "{\"a\":01}",
                           "{\"a\":+1}",
                           "{\"a\":.5}",
                           "{\"a\":1.}",
                           "{\"a\":0x10}",
                           "{'a':1}",
                           "{a:1}",
                           "{\"a\":1} // note",
                           "{\"a\":1}{}",
                           "{\"a\":1e999}",
                           "{\"a\":-1e999}",
                           "\"\xFF\"",
                           "\"\\ud800\"",
                           "{\"a\":nan}",
                           "tru"})
    EXPECT_THAT(parse_refusal(text), HasSubstr("config.json: not valid JSON")) << text;
}

TEST(Json, SaysWhereTheMistakeIs) {
  EXPECT_THAT(parse_refusal("{\n  \"a\": 1,\n  \"b\": ,\n}"), HasSubstr("line 3"));
}

TEST(Json, RefusesAByteOrderMark) {
  EXPECT_THAT(parse_refusal("\xEF\xBB\xBF{}"), AllOf(HasSubstr("config.json"), HasSubstr("byte-order mark")));
}

TEST(Json, RefusesADuplicateKeyAtAnyDepth) {
  for (const char* text :
       {R"({"lr":1,"lr":2})", R"({"a":[{"lr":1,"lr":1}]})", R"({"a":{"b":{"lr":{},"x":1,"lr":{}}}})",
        R"({"lr":{"lr":1},"x":2,"lr":3})", R"({"lr":1,"\u006cr":2})"})
    EXPECT_THAT(parse_refusal(text), AllOf(HasSubstr("config.json"), HasSubstr("lr' appears twice"))) << text;
  EXPECT_NO_THROW(parse_json(R"({"lr":1,"a":{"lr":1},"b":[{"lr":1},{"lr":2}]})", "config.json"));
}

TEST(Json, DeepNestingDoesNotOverflowTheStack) {
  EXPECT_THAT(parse_refusal(std::string(1'000'000, '[')), HasSubstr("not valid JSON"));
  EXPECT_NO_THROW(parse_json(std::string(200'000, '[') + std::string(200'000, ']'), "config.json"));
}

TEST(Json, KeysKeepTheirOrder) {
  const Json object = parse_json(R"({"z":1,"a":2,"m":3})", "t");
  EXPECT_EQ(object.dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(Json, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(refusal([] { parse_json_file("/nowhere/config.json"); }), HasSubstr("/nowhere/config.json"));
}

TEST(Json, IntegersAreExactOrRefused) {
  const Json object =
      parse_json(R"({"whole":3,"negative":-4,"exponent":1e3,"point":5.0,"half":1.5,"text":"7","none":null,
      "large":9223372036854775807,"too_large":9223372036854775808,"huge":1e30,"inexact":9007199254740994.0,"yes":true})",
                 "config.json");
  EXPECT_EQ(json_integer(object, "whole", "w"), 3);
  EXPECT_EQ(json_integer(object, "negative", "w"), -4);
  EXPECT_EQ(json_integer(object, "exponent", "w"), 1000);  // never 1
  EXPECT_EQ(json_integer(object, "point", "w"), 5);
  EXPECT_EQ(json_integer(object, "large", "w"), std::numeric_limits<int64_t>::max());
  for (const char* key : {"half", "text", "too_large", "huge", "inexact", "yes"}) {
    const std::string said = refusal([&] { json_integer(object, key, "config.json"); });
    EXPECT_THAT(said,
                AllOf(HasSubstr("config.json: key '" + std::string(key) + "'"), HasSubstr("an integer")));
    EXPECT_EQ(exact_integer(object[key]), std::nullopt) << key;
  }
  EXPECT_EQ(exact_integer(object["exponent"]), 1000);
}

TEST(Json, NumbersAreNotTexts) {
  const Json object = parse_json(R"({"lr":"1e-4","good":1e-4,"whole":2})", "config.json");
  EXPECT_THAT(refusal([&] { json_number(object, "lr", "config.json"); }),
              HasSubstr("config.json: key 'lr': expected a number, found string \"1e-4\""));
  EXPECT_EQ(json_number(object, "good", "w"), 1e-4);
  EXPECT_EQ(json_number(object, "whole", "w"), 2.0);
}

TEST(Json, BooleansAndTextsAreNothingElse) {
  const Json object = parse_json(R"({"flag":1,"name":3,"off":false,"text":"x"})", "config.json");
  EXPECT_THAT(refusal([&] { json_bool(object, "flag", "config.json", false); }),
              HasSubstr("key 'flag': expected true or false, found number 1"));
  EXPECT_THAT(refusal([&] { json_string(object, "name", "config.json"); }),
              HasSubstr("key 'name': expected a string, found number 3"));
  EXPECT_FALSE(json_bool(object, "off", "w", true));
  EXPECT_EQ(json_string(object, "text", "w"), "x");
}

TEST(Json, AbsentAndNullTakeTheFallbackOrAreMissing) {
  const Json object = parse_json(R"({"clip":null})", "config.json");
  for (const char* key : {"clip", "absent"}) {
    EXPECT_EQ(json_integer(object, key, "w", 9), 9);
    EXPECT_EQ(json_number(object, key, "w", 0.5), 0.5);
    EXPECT_TRUE(json_bool(object, key, "w", true));
    EXPECT_EQ(json_string(object, key, "w", "f"), "f");
    EXPECT_THAT(refusal([&] { json_integer(object, key, "config.json"); }),
                HasSubstr("config.json: key '" + std::string(key) + "' is missing"));
  }
  EXPECT_THAT(refusal([] { json_integer(Json::array({1}), "k", "config.json"); }), HasSubstr("config.json"));
}

TEST(NearestName, FindsTheMisspeltKeyAndNothingFarOff) {
  const std::vector<std::string> names{"gradient_accumulation", "learning_rate", "seed", "steps"};
  EXPECT_EQ(nearest_name("gradient_acumulation", names), "gradient_accumulation");
  EXPECT_EQ(nearest_name("learningrate", names), "learning_rate");
  EXPECT_EQ(nearest_name("step", names), "steps");
  EXPECT_EQ(nearest_name("quantisation", names), "");
  EXPECT_EQ(nearest_name("seed", {}), "");
}

TEST(Shortest, EveryValueReadsBackToTheSameBits) {
  const Philox random(3);
  for (uint64_t i = 0; i < 20000; ++i) {
    const auto words = random.block(i);
    const float single = std::bit_cast<float>(words[0]);
    if (std::isfinite(single)) {
      ASSERT_EQ(std::bit_cast<uint32_t>(std::strtof(shortest(single).c_str(), nullptr)), words[0]);
    }
    const uint64_t bits = words[1] | uint64_t{words[2]} << 32;
    const double number = std::bit_cast<double>(bits);
    if (std::isfinite(number)) {
      ASSERT_EQ(std::bit_cast<uint64_t>(std::strtod(shortest(number).c_str(), nullptr)), bits);
    }
  }
}

TEST(Shortest, IsShortAndNeedsNoLocale) {
  EXPECT_EQ(shortest(0.1f), "0.1");
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(-0.0), "-0");
  EXPECT_EQ(shortest(1.0f / 3), "0.33333334");
  EXPECT_EQ(shortest(5e-324), "5e-324");
}

}  // namespace
}  // namespace trainer
