#include "launch/assign.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "launch/config_fields.h"
#include "launch/scalar.h"

namespace tetra {
namespace {

using Json = nlohmann::ordered_json;

/// Reads a value into a member of any type, with the field's rule.
struct Reader {
  const Field& field;
  const Source& source;

  void operator()(int64_t& out, const Value& value) const {
    check_kind(value, Value::Kind::number);
    const auto number = whole_number(value.text);
    require(number.has_value(), "{}: {} must be an integer{}, not {}", source.at(value.mark), field.key, value_range(),
            value.text);
    check_range(static_cast<double>(*number), value);
    out = *number;
  }

  void operator()(uint64_t& out, const Value& value) const {
    check_kind(value, Value::Kind::number);
    const auto number = whole_unsigned(value.text);
    require(number.has_value(), "{}: {} must be an integer from 0 to 18446744073709551615, not {}",
            source.at(value.mark), field.key, value.text);
    out = *number;
  }

  void operator()(double& out, const Value& value) const {
    check_kind(value, Value::Kind::number);
    const auto number = real_number(value.text);
    require(number.has_value(), "{}: {} is {}, which is beyond the range of a double", source.at(value.mark), field.key,
            value.text);
    check_range(*number, value);
    out = *number;
  }

  void operator()(bool& out, const Value& value) const {
    check_kind(value, Value::Kind::boolean);
    out = value.text == "true";
  }

  void operator()(std::string& out, const Value& value) const {
    check_kind(value, Value::Kind::text);
    require(!value.text.empty(), "{}: {} is empty", source.at(value.mark), field.key);
    const auto& choices = field.rule.choices;
    require(choices.empty() || std::find(choices.begin(), choices.end(), value.text) != choices.end(),
            "{}: {} is '{}'; use {}", source.at(value.mark), field.key, value.text, rule_text(field));
    out = value.text;
  }

  void operator()(std::optional<double>& out, const Value& value) const {
    if (value.kind == Value::Kind::null && !value.text.empty()) {
      out.reset();
      return;
    }
    double number = 0;
    (*this)(number, value);
    out = number;
  }

  void operator()(std::vector<std::string>& out, const Value& value) const {
    if (value.kind == Value::Kind::text) {
      out.resize(1);
      (*this)(out[0], value);
    } else {
      read_list(out, value);
    }
  }

  void operator()(std::vector<double>& out, const Value& value) const { read_list(out, value); }

 private:
  template <typename T>
  void read_list(std::vector<T>& out, const Value& value) const {
    check_kind(value, Value::Kind::list);
    require(!value.items.empty(), "{}: {} is an empty list", source.at(value.mark), field.key);
    require(field.rule.count == 0 || value.items.size() == field.rule.count, "{}: {} must be a {}, not a list of {}",
            source.at(value.mark), field.key, type_text(field), value.items.size());
    std::vector<T> items(value.items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      (*this)(items[i], value.items[i]);
    }
    out = std::move(items);
  }

  void check_kind(const Value& value, Value::Kind kind) const {
    if (value.kind == kind) {
      return;
    }
    std::string hint;
    if (kind == Value::Kind::text && (value.kind == Value::Kind::number || value.kind == Value::Kind::boolean)) {
      hint = fmt::format("; write \"{}\" if text is meant", value.text);
    } else if (kind == Value::Kind::number && value.kind == Value::Kind::text && real_number(value.text)) {
      hint = "; write it without quotes";
    } else if (value.kind == Value::Kind::null && value.text.empty()) {
      hint = "; write a value or leave the key out";
    }
    fail("{}: {} must be {}, not {}{}", source.at(value.mark), field.key, with_article(), describe(value), hint);
  }

  std::string with_article() const {
    const std::string type = type_text(field);
    const bool no_article = type.rfind("true", 0) == 0 || type.rfind("text", 0) == 0;
    return no_article ? type : (type.rfind("integer", 0) == 0 ? "an " : "a ") + type;
  }

  /// Where the range is only the type's, nothing.
  std::string value_range() const {
    const std::string text = rule_text(field);
    return text.empty() ? "" : " (" + text + ")";
  }

  void check_range(double number, const Value& value) const {
    const Rule& rule = field.rule;
    const bool low = rule.above_min ? number <= rule.min : number < rule.min;
    const bool high = rule.below_max ? number >= rule.max : number > rule.max;
    require(!low && !high, "{}: {} is {}; it must be {}", source.at(value.mark), field.key, value.text,
            rule_text(field));
  }
};

/// Numbers keep the type they are written in: 5 and 1e3 are integers, 5.0 and 1e-5 are not.
Json number_json(const Value& value, const std::string& path, const Source& source) {
  if (written_as_integer(value.text)) {
    const auto number = whole_number(value.text);
    return number ? Json(*number) : Json(*whole_unsigned(value.text));
  }
  const auto number = real_number(value.text);
  require(number.has_value(), "{}: {} is {}, which is beyond the range of a double", source.at(value.mark), path,
          value.text);
  return *number;
}

Json to_json(const Value& value, const std::string& path, const Source& source) {
  switch (value.kind) {
    case Value::Kind::null:
      require(!value.text.empty(), "{}: {} has no value; write null if that is meant", source.at(value.mark), path);
      return nullptr;
    case Value::Kind::boolean:
      return value.text == "true";
    case Value::Kind::number:
      return number_json(value, path, source);
    case Value::Kind::text:
      return value.text;
    case Value::Kind::list: {
      Json list = Json::array();
      for (const Value& item : value.items) {
        list.push_back(to_json(item, path, source));
      }
      return list;
    }
    default: {
      Json map = Json::object();
      for (const Entry& entry : value.entries) {
        map[entry.key] = to_json(entry.value, path + "." + entry.key, source);
      }
      return map;
    }
  }
}

void read_json(const Field& field, std::string& out, const Value& value, const Source& source) {
  require(value.kind == Value::Kind::map, "{}: {} must be a map, as in a config.json, not {}", source.at(value.mark),
          field.key, describe(value));
  require(!value.entries.empty(), "{}: {} is an empty map", source.at(value.mark), field.key);
  out = to_json(value, field.key, source).dump();
}

/// Sets one field inside a map that is kept as JSON: `below` is "hidden_size" or "rope_scaling.factor".
void assign_inside_json(std::string& text, const std::string& key, const std::string& below, const Value& value,
                        const Source& source) {
  Json root = text.empty() ? Json::object() : Json::parse(text);
  Json* place = &root;
  for (size_t begin = 0; begin <= below.size();) {
    const size_t end = std::min(below.find('.', begin), below.size());
    require(place->is_object() || place->is_null(), "{}: {} holds {}, not a map, before '{}'", source.name, key,
            place->dump(), below.substr(begin));
    place = &(*place)[below.substr(begin, end - begin)];
    begin = end + 1;
  }
  *place = to_json(value, key + "." + below, source);
  text = root.dump();
}

void assign_field(const Field& field, const Value& value, const Source& source, LoadedConfig& loaded) {
  loaded.places[field.key] = source.at(value.mark);
  std::visit(
      [&](auto member) {
        auto& out = *member(loaded.config);
        if (field.rule.optional && value.kind == Value::Kind::null && !value.text.empty()) {
          out = {};
          return;
        }
        if constexpr (std::is_same_v<std::decay_t<decltype(out)>, std::string>) {
          if (field.rule.json) {
            read_json(field, out, value, source);
            return;
          }
        }
        Reader{field, source}(out, value);
      },
      field.member);
}

[[noreturn]] void fail_unknown(const std::string& path, const std::string& place) {
  const std::string nearest = nearest_key(path);
  const std::string section = path.substr(0, std::max<size_t>(path.rfind('.') + 1, 1) - 1);
  const bool other_place = nearest.substr(nearest.rfind('.') + 1) == path.substr(path.rfind('.') + 1);
  if (other_place || edit_distance(path, nearest) <= 3 || !is_section(section)) {
    fail("{}: {} is not a key; did you mean {}?", place, path, nearest);
  }
  fail("{}: {} is not a key; did you mean {}? {} has {}", place, path, nearest,
       section.empty() ? "the configuration" : section, fmt::join(names_below(section), ", "));
}

void assign_section(const std::string& path, const Value& value, const Source& source, LoadedConfig& loaded) {
  if (value.kind != Value::Kind::map) {
    const std::string names = fmt::format("{}", fmt::join(names_below(path), ", "));
    const std::string hint = value.kind == Value::Kind::null ? "; leave it out or write {}" : "";
    fail("{}: {} must be a map with keys of {}, not {}{}", source.at(value.mark),
         path.empty() ? "the configuration" : path, names, describe(value), hint);
  }
  for (const Entry& entry : value.entries) {
    const std::string child = path.empty() ? entry.key : path + "." + entry.key;
    require(entry.key.find('.') == std::string::npos, "{}: {}: a key has no dots here; nest it: {{{}: {{...}}}}",
            source.at(entry.mark), entry.key, entry.key.substr(0, entry.key.find('.')));
    if (!find_field(child) && !is_section(child)) {
      fail_unknown(child, source.at(entry.mark));
    }
    assign_path(child, entry.value, source, loaded);
  }
}

}  // namespace

void assign_path(const std::string& path, const Value& value, const Source& source, LoadedConfig& loaded) {
  if (const Field* field = find_field(path)) {
    assign_field(*field, value, source, loaded);
    return;
  }
  if (is_section(path)) {
    assign_section(path, value, source, loaded);
    return;
  }
  for (const Field& field : config_fields()) {
    if (field.rule.json && path.rfind(field.key + ".", 0) == 0) {
      std::string& text = *std::get<std::string* (*)(Config&)>(field.member)(loaded.config);
      assign_inside_json(text, field.key, path.substr(field.key.size() + 1), value, source);
      loaded.places[field.key] = source.at(value.mark);
      return;
    }
  }
  fail_unknown(path, source.at(value.mark));
}

}  // namespace tetra
