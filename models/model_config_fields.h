#pragma once
// Typed access to one JSON object of a config.json. null counts as absent, as it does in transformers.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace tetra {

class Fields {
 public:
  /// `object` must outlive this; `origin` starts every message.
  Fields(const nlohmann::json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  const std::string& origin() const { return origin_; }
  bool has(const char* field) const { return find(field) != nullptr; }
  bool is_null(const char* field) const;  // given, as null
  /// Null where the field is absent or null.
  const nlohmann::json* find(const char* field) const;

  std::optional<bool> boolean(const char* field) const;
  std::optional<double> number(const char* field) const;  // finite
  std::optional<int64_t> integer(const char* field) const;
  std::optional<std::string> text(const char* field) const;

  /// 1 .. `max`.
  int64_t size(const char* field, int64_t max) const;  // must be there
  int64_t size_or(const char* field, int64_t max, int64_t otherwise) const;
  double positive_or(const char* field, double otherwise) const;
  /// In [0, 1).
  double probability_or(const char* field, double otherwise) const;

  /// Throws "origin: field: ...".
  template <typename... Args>
  [[noreturn]] void refuse(const char* field, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}: {}", origin_, field, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const nlohmann::json& object_;
  std::string origin_;
};

/// A JSON value as a message shows it, cut short.
std::string shown(const nlohmann::json& value);

}  // namespace tetra
