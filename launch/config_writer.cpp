#include <algorithm>

#include "kernels/error.h"
#include "launch/config_fields.h"
#include "launch/config_reader.h"

namespace tetra {
namespace {

std::vector<std::string> split(const std::string& key) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    parts.push_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::string write_config(const Config& config) {
  std::string text;
  std::vector<std::string> open;  // the sections that the last line lies in
  for (const Field& field : config_fields()) {
    const std::vector<std::string> parts = split(field.key);
    const size_t depth = parts.size() - 1;
    size_t same = 0;
    while (same < std::min(depth, open.size()) && parts[same] == open[same]) {
      ++same;
    }
    for (size_t level = same; level < depth; ++level) {
      text += std::string(2 * level, ' ') + parts[level] + ":\n";
    }
    open.assign(parts.begin(), parts.end() - 1);
    text += std::string(2 * depth, ' ') + parts.back() + ": " + value_text(field, config) + "\n";
  }
  return text;
}

std::string describe_keys() {
  std::string text = "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  const Config defaults;
  for (const Field& field : config_fields()) {
    text += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", field.key, type_text(field), value_text(field, defaults),
                        rule_text(field), field.meaning);
  }
  return text;
}

}  // namespace tetra
