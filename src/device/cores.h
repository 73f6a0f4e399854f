// Cores of this process, shared out among the ranks of the machine.
#pragma once

#include <string>
#include <vector>

namespace trainer {

// How many cores this process may use; at least 1.
int allowed_core_count();

// Cores this process may use, in order of their places.
std::vector<int> allowed_cores();

// By memory node, within it by physical core, so that contiguous parts straddle either only where they must.
// `system`: the folder in which Linux describes cores and nodes; where it says nothing, ascending.
std::vector<int> in_order_of_places(const std::vector<int>& cores,
                                    const std::string& system = "/sys/devices/system");

// "0-3,8": 0, 1, 2, 3, 8, as Linux writes sets of cores. What is no number is left out.
std::vector<int> parse_core_list(const std::string& text);

// The share of rank `local_rank` of `local_size` ranks on this machine: contiguous, equal, at least one core
// (ranks wrap round when there are more ranks than cores).
std::vector<int> cores_of_local_rank(const std::vector<int>& cores, int local_rank, int local_size);

// Its name, as the system gives it.
std::string processor_name();

// Binds the calling thread, and the threads it starts from now on, to these cores.
void bind_to_cores(const std::vector<int>& cores);

}  // namespace trainer
