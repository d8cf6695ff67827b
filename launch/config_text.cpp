// Types, rules and values of the table, in words.
#include <array>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "launch/config_fields.h"
#include "launch/scalar.h"

namespace tetra {
namespace {

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);  // the shortest that reads back to the same double
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// Without quotes where that is plainly text, else as JSON writes it, which YAML reads alike.
std::string quoted(const std::string& text) {
  const std::string safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  if (!text.empty() && text.find_first_not_of(safe) == std::string::npos && text[0] != '-') {
    try {
      if (plain_kind(text) == Value::Kind::text) {
        return text;
      }
    } catch (const Error&) {
    }
  }
  return nlohmann::json(text).dump();
}

std::string json_flow(const nlohmann::ordered_json& json) {
  std::vector<std::string> parts;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      parts.push_back(nlohmann::json(key).dump() + ": " + json_flow(value));
    }
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  if (json.is_array()) {
    for (const auto& value : json) {
      parts.push_back(json_flow(value));
    }
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  return json.dump();
}

struct ValueText {
  const Rule& rule;

  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(uint64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::optional<double>& value) const { return value ? number_text(*value) : "null"; }
  std::string operator()(const std::string& value) const {
    if (value.empty() && rule.optional) {
      return "null";
    }
    return rule.json ? json_flow(nlohmann::ordered_json::parse(value)) : quoted(value);
  }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    if (values.empty() && rule.optional) {
      return "null";
    }
    std::vector<std::string> parts;
    for (const T& value : values) {
      parts.push_back((*this)(value));
    }
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
};

std::string choice_text(const std::vector<std::string>& choices) {
  if (choices.size() < 2) {
    return fmt::format("{}", fmt::join(choices, ""));
  }
  const std::vector<std::string> most(choices.begin(), choices.end() - 1);
  return fmt::format("{} or {}", fmt::join(most, ", "), choices.back());
}

}  // namespace

std::string type_text(const Field& field) {
  static constexpr std::array kNames = {"integer", "integer",        "number",       "true or false",
                                        "text",    "number or null", "text or list", "list of numbers"};
  std::string name = field.rule.json ? "map" : kNames[field.member.index()];
  if (field.rule.count > 0) {
    name = fmt::format("list of {} numbers", field.rule.count);
  }
  return field.rule.optional ? name + " or null" : name;
}

std::string rule_text(const Field& field) {
  const Rule& rule = field.rule;
  if (!rule.choices.empty()) {
    return choice_text(rule.choices);
  }
  if (std::holds_alternative<uint64_t* (*)(Config&)>(field.member)) {
    return "at least 0";
  }
  std::string text;
  if (rule.min > -std::numeric_limits<double>::infinity()) {
    text = fmt::format("{} {}", rule.above_min ? "above" : "at least", rule.min);
  }
  if (rule.max < std::numeric_limits<double>::infinity()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rule.below_max ? "below" : "at most", rule.max);
  }
  return text;
}

std::string value_text(const Field& field, const Config& config) {
  Config copy = config;
  return std::visit([&](auto member) { return ValueText{field.rule}(*member(copy)); }, field.member);
}

}  // namespace tetra
