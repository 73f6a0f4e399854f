// What a build without the CUDA toolkit has instead of cuda_device.cc.
#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace trainer {
namespace {

[[noreturn]] void refuse_cuda() { run_error("{}", why_no_cuda_device()); }

}  // namespace

int cuda_device_count() { return 0; }
std::string why_no_cuda_device() { return "this program was built without the CUDA toolkit"; }
std::unique_ptr<Device> make_cuda_device(int) { refuse_cuda(); }
int cuda_index(const Device&) { refuse_cuda(); }
void* cuda_stream(DeviceQueue&) { refuse_cuda(); }
std::string cuda_device_id(const Device&) { refuse_cuda(); }

}  // namespace trainer
