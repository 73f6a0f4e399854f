// The steps between reading a config and handing it out. Internal to the config files of this folder.
#pragma once

#include <string>

#include "app/config.h"

namespace trainer {

// Defaults that follow from other keys.
void fill_derived_defaults(Config& config);

// Keys that must fit one another, without other files and without the number of ranks. Throws InputError
// headed by `name`, the file the config came from.
void check_config(const Config& config, const std::string& name);

}  // namespace trainer
