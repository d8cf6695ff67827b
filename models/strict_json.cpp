#include "models/strict_json.h"

#include <set>
#include <vector>

#include "kernels/error.h"

namespace tetra {

nlohmann::json parse_strict_json(std::string_view text, const std::string& origin, int max_depth) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    require(depth <= max_depth, "{}: JSON nested deeper than {} levels", origin, max_depth);
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      require(keys.back().insert(key).second, "{}: key '{}' is given twice", origin, key);
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail("{}: not valid JSON: {}", origin, error.what());
  }
}

}  // namespace tetra
