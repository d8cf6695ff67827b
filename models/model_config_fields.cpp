#include "models/model_config_fields.h"

#include <cmath>
#include <limits>

namespace tetra {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

const json* Fields::find(const char* field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::is_null(const char* field) const {
  const auto found = object_.find(field);
  return found != object_.end() && found->is_null();
}

std::optional<bool> Fields::boolean(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    refuse(field, "{} is not true or false", shown(*value));
  }
  return value->get<bool>();
}

std::optional<double> Fields::number(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    refuse(field, "{} is not a number", shown(*value));
  }
  return value->get<double>();
}

std::optional<int64_t> Fields::integer(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > std::numeric_limits<int64_t>::max());
  if (!fits) {
    refuse(field, "{} is not an integer", shown(*value));
  }
  return value->get<int64_t>();
}

std::optional<std::string> Fields::text(const char* field) const {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(field, "{} is not a string", shown(*value));
  }
  return value->get<std::string>();
}

int64_t Fields::size(const char* field, int64_t max) const {
  const auto value = integer(field);
  if (!value) {
    refuse(field, "is missing");
  }
  if (*value < 1 || *value > max) {
    refuse(field, "{} is not in 1 .. {}", *value, max);
  }
  return *value;
}

int64_t Fields::size_or(const char* field, int64_t max, int64_t otherwise) const {
  return has(field) ? size(field, max) : otherwise;
}

double Fields::positive_or(const char* field, double otherwise) const {
  const double value = number(field).value_or(otherwise);
  if (value <= 0.0) {
    refuse(field, "{} is not positive", value);
  }
  return value;
}

double Fields::probability_or(const char* field, double otherwise) const {
  const double value = number(field).value_or(otherwise);
  if (value < 0.0 || value >= 1.0) {
    refuse(field, "{} is not in [0, 1)", value);
  }
  return value;
}

}  // namespace tetra
