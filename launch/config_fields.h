#pragma once
// Every key of the configuration, one line each: what reads it, prints it, checks it and documents it is this table.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/config.h"

namespace tetra {

/// Where a key's value lives in a Config; its type is the key's type.
using Member = std::variant<int64_t* (*)(Config&), uint64_t* (*)(Config&), double* (*)(Config&), bool* (*)(Config&),
                            std::string* (*)(Config&), std::optional<double>* (*)(Config&),
                            std::vector<std::string>* (*)(Config&), std::vector<double>* (*)(Config&)>;

/// What a value must satisfy beside its type.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;            // min itself is refused
  bool below_max = false;            // max itself is refused
  std::vector<std::string> choices;  // text: one of these
  size_t count = 0;                  // lists: so many items; 0 is any number above 0
  bool optional = false;             // text and lists: null is allowed and leaves the member empty
  bool json = false;                 // a map, kept as JSON text
};

struct Field {
  std::string key;  // "train.optimizer.lr"
  Member member;
  Rule rule;
  std::string meaning;  // one line
};

/// All keys; those of a section stand together.
const std::vector<Field>& config_fields();

/// The field of that key, or null.
const Field* find_field(const std::string& key);
/// Whether keys lie below: "train", "train.optimizer". The root is "".
bool is_section(const std::string& path);
/// Names directly below a section, in table order: "train" -> steps, ..., optimizer, ...
std::vector<std::string> names_below(const std::string& section);
/// The key or section that a misspelt or misplaced key most likely means.
std::string nearest_key(const std::string& key);
/// Number of inserted, left-out, changed or swapped characters between two words (optimal string alignment).
size_t edit_distance(const std::string& a, const std::string& b);

/// "integer", "number or null", "text", "list of 2 numbers", ...
std::string type_text(const Field& field);
/// "at least 1", "fp64, fp32, bf16 or fp16"; empty where the type says all.
std::string rule_text(const Field& field);
/// The member's value as one line of YAML that reads back to the same value.
std::string value_text(const Field& field, const Config& config);

}  // namespace tetra
