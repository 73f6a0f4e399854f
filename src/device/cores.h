// Cores of this process, shared out among the ranks of the machine.
#pragma once

#include <string>
#include <vector>

namespace trainer {

// Cores this process may use, ascending.
std::vector<int> allowed_cores();

// The share of rank `local_rank` of `local_size` ranks on this machine: contiguous, equal, at least one core
// (ranks wrap round when there are more ranks than cores).
std::vector<int> cores_of_local_rank(const std::vector<int>& cores, int local_rank, int local_size);

// Its name, as the system gives it.
std::string processor_name();

// Binds the calling thread, and the threads it starts from now on, to these cores.
void bind_to_cores(const std::vector<int>& cores);

}  // namespace trainer
