// The frame of a self-contained HTML page, and what its body is put together from. Internal to the report
// files of this folder.
#pragma once

#include <string>

namespace trainer::report {

// `title` and `body` are HTML.
std::string section(const std::string& title, const std::string& body);
// A figure and what it is, as text.
std::string tile(const std::string& value, const std::string& what);
// With style sheet and script; `title` and `subtitle` are text.
std::string page(const std::string& title, const std::string& subtitle, const std::string& body);

}  // namespace trainer::report
