// How long calls take whose work is put into a queue.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "device/device.h"

namespace trainer {

// Adds to `times` seconds of a call: at least `least` of them, for about `seconds` in all, after calls that
// are not counted. Where calls return before the device has done their work, so many are timed together, and
// count with their mean, that starting the first and hearing of the end of the last does not. `times` may
// hold those of earlier rounds.
void time_calls(DeviceQueue& queue, const std::function<void()>& call, double seconds, size_t least,
                std::vector<double>& times);

}  // namespace trainer
