#include "sim/platform.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

const std::string kFolder =
    (std::filesystem::path(TEST_DATA).parent_path().parent_path() / "configs/platforms").string();

constexpr const char* kSmall = R"({
  "devices_per_node": 2,
  "device": {
    "memory_bytes": 1e9,
    "matmul_macs_per_second": {"fp32": 1e9},
    "memory_bytes_per_second": 1e8,
    "memory_group": "memory"
  },
  "links": {"boundary": {"within_node": {"bytes_per_second": 1e6, "group": "memory"}}},
  "shared_links": {"memory": {"one_per": "node", "bytes_per_second": 1.5e8}},
  "measured": [{"layer": "block", "precision": "fp32", "parameters": 10, "activation_bytes": 20,
                "forward_flops": 30, "forward_seconds": 0.5, "update_seconds": 0.25}]
})";

std::string message_for(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  try {
    parse_platform(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Platform, EveryFileThatShipsIsReadAndReadsBack) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const Platform p = read_platform(entry.path().string());
    EXPECT_EQ(p.name, entry.path().stem());
    EXPECT_FALSE(p.device_source.empty());
    EXPECT_EQ(parse_platform(platform_to_json(p).dump(), "again"), p) << p.name;
    ++count;
  }
  EXPECT_GE(count, 5u);
  EXPECT_EQ(read_platform("h200", kFolder).devices_per_node, 8);
}

TEST(Platform, Mt3000CountsMultiplyAdds) {
  const Platform p = read_platform("mt3000", kFolder);
  EXPECT_TRUE(p.counts_multiply_adds);
  EXPECT_DOUBLE_EQ(p.flops_per_second("bf16"), 16.2e12);
  EXPECT_TRUE(p.recovery_has_its_own_lane);
  EXPECT_THROW(p.flops_per_second("fp32"), InputError);
}

TEST(Platform, MeasuredLayersAreFoundByTheirShape) {
  const Platform p = parse_platform(kSmall, "p.json");
  EXPECT_EQ(parse_platform(platform_to_json(p).dump(), "again"), p);
  LayerCatalogue layer;
  layer.name = "block 7";
  layer.parameters = 10;
  layer.output_bytes = layer.gradient_bytes = 20;
  layer.forward_flops = 30;
  const MeasuredLayer* m = p.measurement(shape_of(layer, 4, false));
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->forward_seconds, 0.5);
  EXPECT_LT(m->backward_seconds, 0);
  EXPECT_EQ(p.measurement(shape_of(layer, 2, false)), nullptr);
  EXPECT_EQ(p.measurement(shape_of(layer, 4, true)), m);  // the nearest there is
  Platform both = p;
  both.measured.push_back(*m);
  both.measured.back().shape.pipelined = true;
  EXPECT_EQ(parse_platform(platform_to_json(both).dump(), "again"), both);
  EXPECT_EQ(both.measurement(shape_of(layer, 4, true)), &both.measured.back());
  EXPECT_EQ(both.measurement(shape_of(layer, 4, false)), &both.measured.front());
  layer.forward_flops = 31;
  EXPECT_EQ(p.measurement(shape_of(layer, 4, false)), nullptr);
}

TEST(Platform, PaceReadsBack) {
  Platform p = parse_platform(kSmall, "p.json");
  p.pace = {0.01, {{1, 1.25, 0.875}, {1.5, 1, 1}}};
  p.memory_overlaps_products = false;
  EXPECT_EQ(parse_platform(platform_to_json(p).dump(), "again"), p);
}

TEST(Platform, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_EQ(message_for("1e9", "1e9"), "accepted");
  EXPECT_THAT(message_for("memory_bytes_per_second\": 1e8", "memory_bytes_per_secnd\": 1e8"),
              HasSubstr("memory_bytes_per_second"));
  EXPECT_THAT(message_for("\"bytes_per_second\": 1e6", "\"bytes_per_second\": 1e6, \"latncy_seconds\": 1"),
              HasSubstr("did you mean 'links.boundary.within_node.latency_seconds'"));
  EXPECT_THAT(message_for("\"bytes_per_second\": 1e6", "\"bytes_per_second\": 0"), HasSubstr("above 0"));
  EXPECT_THAT(message_for("\"one_per\": \"node\"", "\"one_per\": \"nod\""), HasSubstr("did you mean 'node'"));
  EXPECT_THAT(message_for("\"group\": \"memory\"", "\"group\": \"memry\""),
              HasSubstr("did you mean 'memory'"));
  EXPECT_THAT(message_for("\"parameters\": 10", "\"parameters\": 1.5"), HasSubstr("parameters"));
  EXPECT_THAT(message_for("\"matmul_macs_per_second\": {\"fp32\": 1e9}",
                          "\"matmul_macs_per_second\": {\"fp32\": 1e9}, \"matmul_flops_per_second\": {}"),
              HasSubstr("exactly one"));
  EXPECT_THAT(message_for("\"forward_seconds\": 0.5, \"update_seconds\": 0.25", "\"forward_seconds\": null"),
              HasSubstr("no seconds"));
  EXPECT_THAT(message_for("\"devices_per_node\": 2,", ""), HasSubstr("'devices_per_node' is missing"));
  const auto pace = [](const std::string& text) {
    return message_for("\"devices_per_node\": 2,", "\"devices_per_node\": 2, \"pace\": " + text + ",");
  };
  EXPECT_EQ(pace(R"({"piece_seconds": 0.01, "ranks": [[1, 2], [2, 1]]})"), "accepted");
  EXPECT_THAT(pace(R"({"piece_seconds": 0.01})"), HasSubstr("'pace.ranks' is missing"));
  for (const char* ranks : {"[]", "[[]]", "[[1, 2], [1]]", "[[0]]", "[1]"})
    EXPECT_THAT(pace(fmt::format(R"({{"piece_seconds": 0.01, "ranks": {}}})", ranks)),
                HasSubstr("'pace.ranks': expected lists of one length"));
}

}  // namespace
}  // namespace trainer
