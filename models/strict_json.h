#pragma once
// JSON from files that may be damaged or hostile: duplicate keys and deep nesting are errors, not surprises.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tetra {

/// Parses `text`. Throws Error "origin: ..." on a syntax error, on a key given twice in one object (parsers disagree on
/// which of the two counts), and on nesting deeper than `max_depth`.
nlohmann::json parse_strict_json(std::string_view text, const std::string& origin, int max_depth = 64);

}  // namespace tetra
