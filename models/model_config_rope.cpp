#include "models/model_config_rope.h"

#include <optional>
#include <string>

namespace tetra {
namespace {

using nlohmann::json;

constexpr double kDefaultTheta = 10000.0;

bool same(const RopeConfig& a, const RopeConfig& b) {
  return a.theta == b.theta && a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

double required_number(const Fields& fields, const char* field) {
  if (!fields.has(field)) {
    fields.refuse(field, "is missing");
  }
  return fields.positive_or(field, 0.0);
}

void refuse_partial_rotation(const Fields& fields) {
  if (fields.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "{} is not supported; only 1 is", *fields.number("partial_rotary_factor"));
  }
}

std::string rope_type(const Fields& fields) {
  const auto type = fields.text("rope_type");
  const auto old = fields.text("type");
  if (type && old && *type != *old) {
    fields.refuse("rope_type", "'{}' contradicts type '{}'", *type, *old);
  }
  return type ? *type : old.value_or("default");
}

void parse_scaling(const Fields& fields, int64_t max_positions, RopeConfig& rope) {
  rope.type = rope_type(fields);
  if (rope.type == "default") {
    return;
  }
  if (rope.type != "linear" && rope.type != "llama3") {
    fields.refuse("rope_type", "'{}' is not supported; default, linear and llama3 are", rope.type);
  }
  rope.factor = required_number(fields, "factor");
  if (rope.factor < 1.0) {
    fields.refuse("factor", "{} is below 1", rope.factor);
  }
  if (rope.type == "llama3") {
    rope.low_freq_factor = required_number(fields, "low_freq_factor");
    rope.high_freq_factor = required_number(fields, "high_freq_factor");
    if (rope.low_freq_factor >= rope.high_freq_factor) {
      fields.refuse("low_freq_factor", "{} is not below high_freq_factor {}", rope.low_freq_factor,
                    rope.high_freq_factor);
    }
    rope.original_max_position_embeddings =
        fields.size_or("original_max_position_embeddings", int64_t{1} << 31, max_positions);
  }
}

/// One flat object of settings; `theta` is the top level's, where given.
RopeConfig parse_flat(const Fields& fields, std::optional<double> theta, const RopeConfig& start,
                      int64_t max_positions) {
  RopeConfig rope = start;
  const auto inner = fields.number("rope_theta");
  if (theta && inner && *theta != *inner) {
    fields.refuse("rope_theta", "{} contradicts {} at top level", *inner, *theta);
  }
  rope.theta = inner ? fields.positive_or("rope_theta", 0.0) : theta.value_or(kDefaultTheta);
  refuse_partial_rotation(fields);
  parse_scaling(fields, max_positions, rope);
  return rope;
}

bool is_nested(const json& object) {
  return object.contains("full_attention") || object.contains("sliding_attention");
}

/// `field` is rope_scaling or rope_parameters. Nothing where it is absent, null or empty.
std::optional<RopeConfig> parse_object(const Fields& fields, const char* field, std::optional<double> theta,
                                       const RopeConfig& start, int64_t max_positions) {
  const json* object = fields.find(field);
  if (object == nullptr) {
    return std::nullopt;
  }
  if (!object->is_object()) {
    fields.refuse(field, "{} is not an object", shown(*object));
  }
  if (object->empty()) {
    return std::nullopt;
  }
  const std::string origin = fields.origin() + ": " + field;
  if (!is_nested(*object)) {
    return parse_flat(Fields(*object, origin), theta, start, max_positions);
  }
  std::optional<RopeConfig> result;
  for (const auto& [layer_type, settings] : object->items()) {
    if (!settings.is_object()) {
      fields.refuse(field, "{}: {} is not an object", layer_type, shown(settings));
    }
    const RopeConfig rope = parse_flat(Fields(settings, origin + ": " + layer_type), theta, start, max_positions);
    if (result && !same(*result, rope)) {
      fields.refuse(field, "settings that differ between layer types are not supported");
    }
    result = rope;
  }
  return result;
}

}  // namespace

RopeConfig parse_rope(const Fields& fields, int64_t head_dim, int64_t max_positions) {
  RopeConfig start;
  start.head_dim = head_dim;
  refuse_partial_rotation(fields);
  std::optional<double> theta;
  if (fields.has("rope_theta")) {
    theta = fields.positive_or("rope_theta", 0.0);
  }
  const auto scaling = parse_object(fields, "rope_scaling", theta, start, max_positions);
  const auto parameters = parse_object(fields, "rope_parameters", theta, start, max_positions);
  if (scaling && parameters && !same(*scaling, *parameters)) {
    fields.refuse("rope_scaling", "contradicts rope_parameters");
  }
  if (scaling) {
    return *scaling;
  }
  if (parameters) {
    return *parameters;
  }
  start.theta = theta.value_or(kDefaultTheta);
  return start;
}

void write_rope(const RopeConfig& rope, nlohmann::ordered_json& root) {
  nlohmann::ordered_json settings = {{"rope_type", rope.type}};
  if (rope.type != "default") {
    settings["factor"] = rope.factor;
  }
  if (rope.type == "llama3") {
    settings["low_freq_factor"] = rope.low_freq_factor;
    settings["high_freq_factor"] = rope.high_freq_factor;
    settings["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  root["rope_theta"] = rope.theta;
  if (rope.type == "default") {
    root["rope_scaling"] = nullptr;
  } else if (rope.type == "linear") {
    root["rope_scaling"] = {{"type", rope.type}, {"factor", rope.factor}};  // the one spelling that all versions read
  } else {
    root["rope_scaling"] = settings;
  }
  settings["rope_theta"] = rope.theta;
  root["rope_parameters"] = settings;
}

}  // namespace tetra
