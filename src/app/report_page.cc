#include "app/report_page.h"

#include <fmt/core.h>

#include "app/report_chart.h"
#include "app/report_style.h"

namespace trainer::report {

std::string section(const std::string& title, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>{}</section>\n", title, body);
}

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape(value), escape(what));
}

std::string page(const std::string& title, const std::string& subtitle, const std::string& body) {
  const std::string name = escape(title);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>{} - {}</title><style>{}</style></head>"
      "<body><main>\n<h1>{}</h1><div class=\"quiet\">{}</div>\n{}</main><div id=\"tip\"></div>"
      "<script>{}</script></body></html>\n",
      name, escape(subtitle), kStyle, name, escape(subtitle), body, kScript);
}

}  // namespace trainer::report
