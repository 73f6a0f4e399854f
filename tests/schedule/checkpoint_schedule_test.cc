#include "schedule/checkpoint_schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer {
namespace {

const std::vector<int64_t> kBytes = {10, 10, 10, 10, 10, 10};

// Five layers: boundary 1 in host memory, 2 in storage, 4 recomputed.
CheckpointSchedule mixed() {
  CheckpointSchedule s = fixed_interval(5, 1);
  s.boundaries[1] = {BoundaryHome::kHost, {{1, 4}, {2, 6}}, {}, {}, {{5, 1}, {2, 9}}};
  s.boundaries[2] = {BoundaryHome::kStorage, {{2, 5}, {3, 5}}, {{3, 5}, {4, 5}}, {{5, 10}}, {{4, 5}, {3, 5}}};
  s.boundaries[4] = {};
  return s;
}

TEST(CheckpointSchedule, EdgesJoinKeptBoundaries) {
  EXPECT_EQ(mixed().edges(), (std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {2, 3}, {3, 5}}));
  EXPECT_EQ(fixed_interval(6, 4).edges(), (std::vector<std::pair<int, int>>{{0, 4}, {4, 6}}));
}

TEST(CheckpointSchedule, ReadsBackWhatItWrote) {
  const CheckpointSchedule schedule = mixed();
  ASSERT_TRUE(structural_errors(schedule, kBytes).empty());
  const Json json = parse_json(to_json(schedule).dump(), "schedule.json");
  EXPECT_EQ(checkpoint_schedule_from_json(json, "schedule.json"), schedule);
}

TEST(CheckpointSchedule, RefusesFilesThatSaySomethingElse) {
  const Json good = to_json(mixed());
  const auto refused = [&](auto&& change, const std::string& message) {
    Json bad = good;
    change(bad);
    try {
      checkpoint_schedule_from_json(bad, "schedule.json");
      ADD_FAILURE() << "read in spite of: " << message;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("schedule.json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused([](Json& j) { j = Json::array(); }, "format");
  refused([](Json& j) { j["format"] = "plan"; }, "format");
  refused([](Json& j) { j["version"] = 2; }, "version");
  refused([](Json& j) { j["layers"] = 7; }, "6 boundaries for 7 layers");
  refused([](Json& j) { j["boundaries"][1]["home"] = "hosts"; }, "did you mean 'host'");
  refused([](Json& j) { j["boundaries"][1]["boundary"] = 3; }, "in order");
  refused([](Json& j) { j["boundaries"][1]["device_to_host"][0] = {1, -4}; }, "[1,-4]");
  refused([](Json& j) { j["boundaries"][1]["device_to_host"][0] = {1.5, 4}; }, "[1.5,4]");
  refused([](Json& j) { j["edges"].erase(0); }, "edges");
}

TEST(CheckpointSchedule, SaysWhatAStepCannotDo) {
  const auto wrong = [&](auto&& change, const std::string& message) {
    CheckpointSchedule s = mixed();
    change(s.boundaries);
    const auto errors = structural_errors(s, kBytes);
    ASSERT_FALSE(errors.empty()) << message;
    EXPECT_NE(errors[0].find(message), std::string::npos) << errors[0];
  };
  using Boundaries = std::vector<BoundaryPlacement>;
  wrong([](Boundaries& b) { b[0].home = BoundaryHome::kHost; }, "boundary 0 must stay");
  wrong([](Boundaries& b) { b.pop_back(); }, "5 boundaries");
  wrong([](Boundaries& b) { b[1].device_to_host[0].window = 0; }, "in window 0, outside 1 to 4");
  wrong([](Boundaries& b) { b[1].host_to_device[1].window = 1; }, "in window 1, outside 5 to 2");
  wrong([](Boundaries& b) { b[1].device_to_host[0].bytes = 3; }, "moves 9 of 10");
  wrong([](Boundaries& b) { std::swap(b[1].device_to_host[0], b[1].device_to_host[1]); }, "out of order");
  wrong([](Boundaries& b) { b[2].storage_write[0].window = 2; }, "storage_write is ahead");
  wrong([](Boundaries& b) { b[2].storage_read[0].window = 3; }, "host_to_device is ahead");
  wrong([](Boundaries& b) { b[3].device_to_host = {{3, 10}}; }, "needs no device_to_host");
  wrong([](Boundaries& b) { b[4].host_to_device = {{5, 10}}; }, "needs no host_to_device");
  // Recomputing boundary 2 makes the edge begin at 1: its reload is due before layer 2 runs backward.
  wrong([](Boundaries& b) { b[2] = {}; }, "in window 2, outside 5 to 3");
}

}  // namespace
}  // namespace trainer
