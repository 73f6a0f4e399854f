#include "device/cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/dataset_files.h"

namespace trainer {
namespace {

TEST(Cores, ListsAsLinuxWritesThem) {
  EXPECT_EQ(parse_core_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_core_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_core_list("").empty());
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

// Two sockets of two cores with two threads each, numbered as such machines are: the second threads last.
TEST(Cores, RanksGetWholeCoresOfOneMemoryNode) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path system = folder / "system";
  write(system / "node/online", "0-1");
  write(system / "node/node0/cpulist", "0,2,4,6");
  write(system / "node/node1/cpulist", "1,3,5,7");
  for (int core = 0; core < 8; ++core)
    write(system / "cpu" / ("cpu" + std::to_string(core)) / "topology/thread_siblings_list",
          std::to_string(core % 4) + "," + std::to_string(core % 4 + 4));
  const auto cores = in_order_of_places({0, 1, 2, 3, 4, 5, 6, 7}, system.string());
  EXPECT_EQ(cores, (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(cores_of_local_rank(cores, 1, 4), (std::vector<int>{2, 6}));
  EXPECT_EQ(cores_of_local_rank(cores, 1, 2), (std::vector<int>{1, 5, 3, 7}));
}

TEST(Cores, AscendWhereTheSystemSaysNothing) {
  EXPECT_EQ(in_order_of_places({3, 1, 2}, "no/such/folder"), (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace trainer
