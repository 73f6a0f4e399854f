#include "app/backend.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/in_process.h"
#include "device/cuda/cuda_device.h"

namespace trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Backend, IsTheHostUnlessAskedOtherwise) {
  const auto world = make_in_process_group(1);
  const RankBackend backend = make_backend(Config{}, *world.front());
  EXPECT_TRUE(backend.device->host_reaches());
  EXPECT_EQ(backend.device->name(), "host");
  EXPECT_EQ(backend.transport, nullptr);
}

// With and without the toolkit, with and without a driver.
TEST(Backend, SaysWhyThereIsNoCudaDevice) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const auto world = make_in_process_group(1);
  Config config;
  config.device.kind = DeviceKind::kCuda;
  const auto refusal = [&]() -> std::string {
    try {
      make_backend(config, *world.front());
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(cuda_device_count(), 0);
  EXPECT_NE(why_no_cuda_device(), "");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("'device.kind' is \"cuda\""), HasSubstr(why_no_cuda_device()),
                               HasSubstr("set it to \"host\"")));
}

}  // namespace
}  // namespace trainer
